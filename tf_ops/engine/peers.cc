#include "engine/peers.h"

#include <algorithm>
#include <cstring>

#include "engine/leak_on_exit.h"
#include "engine/open_transfers.h"
#include "engine/tags.h"
#include "engine/wait.h"

namespace ringar {
Peers::Peers(Link& link, const Topology& topology, const SharedSegment* segment, int generation)
    : link_(link),
      topology_(topology),
      segment_(segment),
      generation_(generation),
      finished_(kMaxSets),
      incoming_(sizeof(ControlMessage) +
                std::max(kWhyBytes, static_cast<size_t>(topology.size()) / 8 + 1)) {}

// The link may write what it still expects until the process ends.
Peers::~Peers() {
  leak_on_exit(std::move(incoming_));
}

void Peers::add_neighbors(const std::vector<int>& members) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t n = members.size();
  const auto me = static_cast<size_t>(place_in(members, topology_.rank));
  for (size_t distance = 1; distance < n; distance *= 2) {
    audience_.insert(members[(me + distance) % n]);
    audience_.insert(members[(me + n - distance) % n]);
  }
}

Status Peers::expect() {
  const Status status = link_.receive(Link::kAnyone, kControlTag, incoming_.data(),
                                      incoming_.size(), Link::Length::kAtMost, &expecting_);
  if (!status.ok()) expecting_ = -1;
  return status;
}

Status Peers::poll() {
  const std::lock_guard<std::mutex> lock(mutex_);
  RINGAR_RETURN_IF_ERROR(hear_all());
  return let_go_of_sent();
}

Status Peers::hear_all() {
  if (expecting_ < 0) RINGAR_RETURN_IF_ERROR(expect());
  RINGAR_RETURN_IF_ERROR(link_.progress());
  for (;;) {
    bool done = false;
    int from = 0;
    const Status answer = link_.poll(expecting_, &done, &from);
    if (!answer.ok()) expecting_ = -1;
    RINGAR_RETURN_IF_ERROR(answer);
    if (!done) return {};
    ControlMessage message;
    std::memcpy(&message, incoming_.data(), sizeof message);
    const auto* rest = reinterpret_cast<const char*>(incoming_.data()) + sizeof message;
    if (message.generation == generation_) hear(from, message, {rest, message.bytes});
    RINGAR_RETURN_IF_ERROR(expect());
    RINGAR_RETURN_IF_ERROR(link_.progress());
  }
}

void Peers::hear(int from, const ControlMessage& message, const std::string& rest) {
  if (message.kind == kWaiting) {
    if (message.set >= 0) return merge(message.set, message.sequence, rest);
    const bool asks_first = audience_.insert(from).second;
    if (asks_first && !own_end_.empty()) send(own_end_, {from});
    return;
  }
  if (message.rank == topology_.rank) return;  // passed on by those that it has told
  End& end = ends_[static_cast<int>(message.rank)];
  // Its leaving would hide why it gave up.
  if (end.message.kind != kGaveUp) end = {message, rest};
  if (message.kind != kGaveUp || knows_failure_) return;
  knows_failure_ = true;
  send({reinterpret_cast<const char*>(incoming_.data()), sizeof message + rest.size()}, audience_);
}

void Peers::merge(int64_t set, uint64_t sequence, const std::string& places) {
  Waiters& sequences = waiters_[set];
  sequences.resize(std::max(sequences.size(), 8 * places.size()));
  for (size_t i = 0; i < 8 * places.size(); ++i)
    if ((places[i / 8] >> i % 8 & 1) != 0) sequences[i] = std::max(sequences[i], sequence + 1);
}

Status Peers::let_go_of_sent() {
  Status status;
  for (auto sending = sending_.begin(); sending != sending_.end();) {
    auto& handles = sending->handles;
    const auto is_sent = [&](int handle) {
      bool done = false;
      const Status answer = link_.poll(handle, &done);
      if (!answer.ok()) status = answer;
      return done || !answer.ok();
    };
    handles.erase(std::remove_if(handles.begin(), handles.end(), is_sent), handles.end());
    sending = handles.empty() ? sending_.erase(sending) : std::next(sending);
  }
  return status;
}

void Peers::send(const std::string& bytes, const std::set<int>& to) {
  Sending& sending = sending_.emplace_back(Sending{bytes, {}});
  const auto* memory = reinterpret_cast<const std::byte*>(sending.bytes.data());
  for (int rank : to) {
    int handle = -1;
    if (link_.send(rank, kControlTag, memory, sending.bytes.size(), &handle).ok())
      sending.handles.push_back(handle);
  }
}

bool Peers::waiting(int set, uint64_t sequence, const std::vector<int>& members, int hop) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ControlMessage message;
  message.generation = generation_;
  message.rank = topology_.rank;
  message.set = set;
  message.sequence = sequence;
  const size_t n = members.size();
  const auto me = static_cast<size_t>(place_in(members, topology_.rank));
  const size_t distance = size_t{1} << hop;
  std::string places;
  if (set >= 0) {
    std::string mask(n / 8 + 1, '\0');
    mask[me / 8] = static_cast<char>(1 << me % 8);
    merge(set, sequence, mask);
    const Waiters& sequences = waiters_[set];
    places.resize(sequences.size() / 8);
    for (size_t i = 0; i < sequences.size(); ++i)
      if (sequences[i] > sequence) places[i / 8] = static_cast<char>(places[i / 8] | 1 << i % 8);
  }
  message.bytes = places.size();
  std::set<int> to = {members[0]};
  if (me < n) to = {members[(me + distance) % n], members[(me + n - distance) % n]};
  to.erase(topology_.rank);
  send(std::string(reinterpret_cast<const char*>(&message), sizeof message) + places, to);
  return 2 * distance < n;
}

std::string Peers::end_message(Kind kind, const std::string& why) const {
  ControlMessage message;
  message.kind = kind;
  message.generation = generation_;
  message.rank = topology_.rank;
  std::copy_n(finished_.begin(), kMaxSets, message.finished);
  message.bytes = fitting(why, kWhyBytes);
  return std::string(reinterpret_cast<const char*>(&message), sizeof message) +
         why.substr(0, message.bytes);
}

void Peers::gave_up(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!own_end_.empty()) return;
  std::string text = "rank " + std::to_string(topology_.rank) + " has given up: " + why;
  // In place of a chain of ranks that give up because of one another, its first link.
  for (const auto& [rank, end] : ends_)
    if (why.find(end.why) != std::string::npos) text = end.why;
  own_end_ = end_message(kGaveUp, text);
  knows_failure_ = true;
  send(own_end_, audience_);
  (void)link_.progress();
  (void)let_go_of_sent();
}

// Stays a moment, so that the control messages get out: a process that ends makes no more progress.
void Peers::left() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (own_end_.empty()) {
    (void)hear_all();  // who asks to be told
    own_end_ =
        end_message(kLeft, "rank " + std::to_string(topology_.rank) +
                               " has left: it called ringar.shutdown() or its program ended");
    send(own_end_, audience_);
  }
  (void)wait_at_most(kFarewell, {}, [&] {
    return !link_.progress().ok() || !let_go_of_sent().ok() || sending_.empty();
  });
  // Messages under way keep their memory: the link may read it until the process ends.
  if (!sending_.empty()) leak_on_exit(std::move(sending_));
}

void Peers::finished(int slot, int set, uint64_t collectives) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (slot < kMaxSets) finished_[static_cast<size_t>(slot)] = {set, collectives};
}

uint64_t Peers::finished_by(const ControlMessage& message, int set) {
  for (const Progress& progress : message.finished)
    if (progress.set == set) return progress.collectives;
  return 0;
}

std::string Peers::trouble(int job_rank, int set, uint64_t sequence) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto end = ends_.find(job_rank);
  if (end != ends_.end()) {
    const ControlMessage& message = end->second.message;
    const bool minds = message.kind == kGaveUp || sequence != kLossOnly;
    if (finished_by(message, set) > sequence) return "";
    if (minds) return end->second.why;
  }
  if (segment_ && topology_.is_here(job_rank))
    return segment_->death(topology_.segment_place(job_rank));
  return "";
}

std::string Peers::open_transfers() const {
  return describe_open_transfers(topology_.rank, link_.open_transfers());
}

bool Peers::waits(size_t place, int set, uint64_t sequence) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto waiters = waiters_.find(set);
  return waiters != waiters_.end() && place < waiters->second.size() &&
         waiters->second[place] > sequence;
}

}  // namespace ringar
