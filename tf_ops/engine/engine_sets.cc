// The engine's process sets: their places in the shared segment, how ranks agree on one, and how it
// is found.

#include <algorithm>
#include <set>

#include "engine/agreement.h"
#include "engine/engine.h"

namespace ringar {
namespace {

std::string list(const std::vector<int>& ranks) {
  std::string s = "[";
  for (size_t i = 0; i < ranks.size(); ++i) s += (i ? ", " : "") + std::to_string(ranks[i]);
  return s + "]";
}

}  // namespace

// All ranks count alike, members or not, also where there is no memory. An id stands for one set
// for ever, since traced functions know their sets by it; slots are used again.
Engine::Area Engine::next_area(const std::vector<int>& ranks) const {
  const std::lock_guard<std::mutex> lock(sets_mutex_);
  std::set<int> slots;
  for (const auto& [id, area] : areas_) slots.insert(area.slot);
  int slot = 0;
  while (slots.count(slot)) ++slot;
  return {next_offset_, ranks, slot};
}

// The steps that may fail on one rank alone, before the ranks agree; returns why, or "". A set that
// is not installed leaves nothing behind.
std::string Engine::reserve(const std::vector<int>& ranks, std::shared_ptr<ProcessSet>* set) {
  const std::set<int> distinct_ranks(ranks.begin(), ranks.end());
  if (ranks.empty() || distinct_ranks.size() < ranks.size() || *distinct_ranks.begin() < 0 ||
      *distinct_ranks.rbegin() >= config_.size)
    return "expected different ranks from 0 to " + std::to_string(config_.size - 1) +
           ", at least one, in a set that was not added before";
  if (std::find(ranks.begin(), ranks.end(), config_.rank) == ranks.end()) return "";
  const Area area = next_area(ranks);
  // Memory reserved in vain serves the next set, which takes the same place.
  const Status reserved = Communicator::reserve(ranks, world_, area.offset);
  if (!reserved.ok()) return reserved.message();
  Owner& engine = *this;
  *set = std::make_shared<ProcessSet>(next_id_, area.slot, ranks, area.offset, world_, shares_,
                                      engine);
  if ((*set)->communicator().has_memory()) return "";
  return "cannot map the shared memory of process set " + std::to_string(next_id_) + " of ranks " +
         list(ranks);
}

Status Engine::install(const std::vector<int>& ranks, std::shared_ptr<ProcessSet> set, int* id) {
  const Area area = next_area(ranks);
  if (link_ && area.slot >= InterNodeCommunicator::kMostSets)
    return {RINGAR_UNSUPPORTED, who() + "expected at most " +
                                    std::to_string(InterNodeCommunicator::kMostSets) +
                                    " process sets at a time, received one more; remove those "
                                    "that are no longer used"};
  RINGAR_RETURN_IF_ERROR(split_gpus(set ? &set->communicator() : nullptr));
  const std::lock_guard<std::mutex> lock(sets_mutex_);
  *id = next_id_++;
  next_offset_ += Communicator::shared_bytes(ranks, world_.topology);
  areas_[*id] = area;
  if (set) sets_[*id] = std::move(set);
  return {};
}

Status Engine::add_process_set(const std::vector<int>& ranks, int* id) {
  std::shared_ptr<ProcessSet> set;
  Agreement agreement(
      Collective::kAddProcessSet, list(ranks), [&] { return reserve(ranks, &set); },
      [&] { return install(ranks, std::move(set), id); });
  return run(agreement);
}

// Messages of a broken set must not arrive in another one: it keeps its slot.
Status Engine::remove_process_set(int id) {
  const auto set = id == 0 ? nullptr : find(id);
  const auto refusal = [&]() -> std::string {
    if (!link_ || !set || !set->communicator().is_broken()) return "";
    return "expected a process set whose collectives have all come to their end, received one of "
           "which one has failed";
  };
  if (set) set->close();
  Agreement agreement(Collective::kRemoveProcessSet, std::to_string(id), refusal,
                      [&] { return discard(id); });
  const Status removed = run(agreement);
  if (set && !removed.ok()) set->reopen();
  return removed;
}

// No rank is in a collective of the set any longer, and none gets into one: all have closed it.
Status Engine::discard(int id) {
  const auto set = id == 0 ? nullptr : find(id);
  if (set) {
    set->stop();
    const std::lock_guard<std::mutex> order(gpu_->order());
    set->communicator().close_gpus();
  }
  const std::lock_guard<std::mutex> lock(sets_mutex_);
  const auto area = areas_.find(id);
  if (id == 0 || area == areas_.end())
    return {RINGAR_MISMATCH,
            who() + "expected the id of an added process set, received " + std::to_string(id)};
  const size_t bytes = Communicator::shared_bytes(area->second.ranks, world_.topology);
  if (bytes > 0 && world_.topology.segment_place(config_.rank) == 0)
    segment_->discard(area->second.offset, bytes);
  sets_.erase(id);
  areas_.erase(area);
  return {};
}

std::shared_ptr<ProcessSet> Engine::find(int id, Status* refusal) {
  if (id == 0 && all_ranks_) return all_ranks_;
  const std::lock_guard<std::mutex> lock(sets_mutex_);
  const auto entry = sets_.find(id);
  if (entry != sets_.end()) return entry->second;
  if (!refusal) return nullptr;
  const auto area = areas_.find(id);
  *refusal =
      area == areas_.end()
          ? no_such_set(who(), id)
          : Status(RINGAR_MISMATCH, who() + "expected a member of process set " +
                                        std::to_string(id) + " (ranks " + list(area->second.ranks) +
                                        "), received rank " + std::to_string(config_.rank) +
                                        ". Call its collectives only where "
                                        "process_set.included() is true.");
  return nullptr;
}

std::shared_ptr<ProcessSet> Engine::line_for(const Spec& spec, Status* refusal) {
  if (spec.world < 0 || spec.world == config_.generation) return find(line_of(spec), refusal);
  *refusal = {RINGAR_MISMATCH,
              who() + std::string(name_of(spec.collective)) + " \"" + spec.name +
                  "\": expected a function that was traced in this world of " +
                  std::to_string(config_.size) + " ranks (generation " +
                  std::to_string(config_.generation) + "), received one of generation " +
                  std::to_string(spec.world) +
                  ", whose number of ranks it holds. Make the tf.function anew in a reset callback "
                  "(ringar.elastic.State.register_reset_callbacks)"};
  return nullptr;
}

std::vector<std::shared_ptr<ProcessSet>> Engine::sets() {
  const std::lock_guard<std::mutex> lock(sets_mutex_);
  std::vector<std::shared_ptr<ProcessSet>> all;
  for (const auto& [id, set] : sets_) all.push_back(set);
  return all;
}

std::shared_ptr<const Communicator> Engine::process_set(int id) {
  const auto set = find(id);
  return set ? std::shared_ptr<const Communicator>(set, &set->communicator()) : nullptr;
}

}  // namespace ringar
