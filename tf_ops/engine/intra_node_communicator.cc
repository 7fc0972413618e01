#include "engine/intra_node_communicator.h"

namespace ringar {

// Written by its owner alone; one cache line (and its prefetched neighbour) per flag. A rank that
// sees the flag sees the digest, too, and reads the signature only if that differs.
struct alignas(4096) IntraNodeCommunicator::Line {
  alignas(128) Flag arrived;
  uint64_t digests[2];
  alignas(128) Flag reduced;
  alignas(128) std::atomic<uint64_t> signature_count;  // collectives whose signature is written
  std::atomic<bool> gave_up;                           // its arrays are its caller's again
  Signature signatures[2];
};

namespace {

constexpr double kTransferRest = 50e-6;  // while transfers need to be polled
// The bytes of all ranks' rings of send buffers, since a core reads the others' beside its own. A
// ring of results has a slice for each send buffer of middle size.
constexpr size_t kRings = size_t{4} << 20;

BufferRing ring_of_sends(size_t ranks) {
  return {ranks * tuning_for(ranks).slice_bytes, kRings / ranks};
}

BufferRing ring_of_results(size_t ranks) {
  return {tuning_for(ranks).slice_bytes, ring_of_sends(ranks).bytes() / ranks};
}

}  // namespace

// Its line, its send buffers, its result buffers; in whole pages, so that no two ranks write to one
// page.
Extent IntraNodeCommunicator::part(int size, int rank, uint64_t offset) {
  if (size == 1) return {};
  const size_t n = static_cast<size_t>(size);
  const size_t bytes =
      page_up(sizeof(Line) + ring_of_sends(n).bytes() + ring_of_results(n).bytes());
  return {offset + bytes * static_cast<size_t>(rank), bytes};
}

size_t IntraNodeCommunicator::shared_bytes(int size) {
  return part(size, 0, 0).bytes * static_cast<size_t>(size);
}

IntraNodeCommunicator::IntraNodeCommunicator(int set_id, std::vector<Member> members, int rank,
                                             SharedSegment* segment, uint64_t offset,
                                             const Timeouts& timeouts, OpState& op_state)
    : set_id_(set_id),
      members_(std::move(members)),
      rank_(rank),
      segment_(segment),
      timeouts_(timeouts),
      op_state_(op_state),
      tuning_(tuning_for(members_.size())),
      part_bytes_(part(size(), 0, 0).bytes),
      workspace_(members_.size()),
      sends_(ring_of_sends(members_.size())),
      results_(ring_of_results(members_.size())) {
  if (size() > 1) memory_ = segment_->map(offset, shared_bytes(size()));
}

IntraNodeCommunicator::~IntraNodeCommunicator() {
  if (memory_) segment_->unmap(memory_, shared_bytes(size()));
}

IntraNodeCommunicator::Line& IntraNodeCommunicator::line(int rank) const {
  return *reinterpret_cast<Line*>(memory_ + part_bytes_ * static_cast<size_t>(rank));
}

std::byte* IntraNodeCommunicator::send_buffer(int rank) const {
  auto* buffers = reinterpret_cast<std::byte*>(&line(rank)) + sizeof(Line);
  return buffers + sends_.place();
}

std::byte* IntraNodeCommunicator::result(int rank, uint64_t step) const {
  auto* buffers = reinterpret_cast<std::byte*>(&line(rank)) + sizeof(Line);
  return buffers + sends_.bytes() + (step == step_ ? results_.place() : results_.last_place());
}

Signature& IntraNodeCommunicator::signature(int rank, uint64_t sequence) const {
  return line(rank).signatures[sequence % 2];
}

Status IntraNodeCommunicator::handshake() {
  bool agree = false;
  RINGAR_RETURN_IF_ERROR(check_consistency(&agree));
  if (agree) return {};
  const Status status = disagreement_here();
  finish_step();
  return status;
}

Status IntraNodeCommunicator::check_consistency(bool* agree) {
  *agree = !op_state_.signature.rejected;
  if (size() == 1) return {};
  const uint64_t sequence = op_state_.sequence(), digest = op_state_.signature.digest();
  op_state_.signature.copy_to(signature(rank_, sequence));
  line(rank_).signature_count.store(sequence + 1, std::memory_order_release);
  line(rank_).digests[step_ % 2] = digest;
  RINGAR_RETURN_IF_ERROR(exchange());
  for (int r = 0; r < size(); ++r) *agree &= line(r).digests[step_ % 2] == digest;
  return {};
}

Status IntraNodeCommunicator::disagreement_here() const {
  std::vector<Signature> all;
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) {
    all.push_back(r == rank_ ? op_state_.signature : signature(r, op_state_.sequence()));
    ranks.push_back(members_[static_cast<size_t>(r)].job_rank);
  }
  return disagreement(all, ranks, set_id_);
}

Status IntraNodeCommunicator::exchange() {
  if (size() == 1) return {};
  line(rank_).arrived.store(step_ + 1);
  for (int r = 0; r < size(); ++r)
    if (r != rank_) RINGAR_RETURN_IF_ERROR(wait(&Line::arrived, step_ + 1, r));
  return {};
}

void IntraNodeCommunicator::finish_step(size_t send_bytes, size_t result_bytes) {
  sends_.advance(send_bytes);
  results_.advance(result_bytes);
  ++step_;
}

Status IntraNodeCommunicator::part_from_inputs() {
  RINGAR_RETURN_IF_ERROR(exchange());
  finish_step();
  return inputs_were_kept();
}

// A rank that has raised its last flag may give up the wait for a late one, which may then read
// inputs that the first rank's caller has changed. The late one raises its own flag after its
// reads, and calls this after that.
Status IntraNodeCommunicator::inputs_were_kept() const {
  for (int r = 0; r < size(); ++r) {
    if (!line(r).gave_up.load()) continue;
    const Member& member = members_[static_cast<size_t>(r)];
    const std::string why = segment_->trouble(member.segment_place);
    return {RINGAR_PEER_LOST,
            "expected all ranks to take part, but " +
                (why.empty() ? "rank " + std::to_string(member.job_rank) + " has given up" : why)};
  }
  return {};
}

void IntraNodeCommunicator::post_result() {
  line(rank_).reduced.store(step_ + 1);
}

Status IntraNodeCommunicator::wait_for_result(int rank, uint64_t step) {
  return wait(&Line::reduced, step + 1, rank);
}

Status IntraNodeCommunicator::wait(Flag Line::* field, uint64_t target, int rank) {
  const Flag& flag = line(rank).*field;
  for (int i = 0; i < 64; ++i) {
    if (flag.reached(target)) return {};
    relax();
  }
  const int64_t begin = op_state_.tracing ? monotonic_ns() : 0;
  const Status status = wait_with_watchdog(field, target, rank);
  if (!status.ok()) line(rank_).gave_up.store(true);
  if (op_state_.tracing)
    op_state_.trace.add(Span::kWait, begin, members_[static_cast<size_t>(rank)].job_rank);
  return status;
}

Status IntraNodeCommunicator::wait_with_watchdog(Flag Line::* field, uint64_t target, int rank) {
  Flag& flag = line(rank).*field;
  InFlight* const in_flight = op_state_.in_flight;
  Watchdog watchdog(timeouts_, op_state_);
  Rest rest = Rest::until_woken(timeouts_.spin());
  if (in_flight) rest.shortest = rest.longest = kTransferRest;
  const auto look = [&](bool* done) -> Status {
    *done = flag.reached(target);
    return *done || !in_flight ? Status() : in_flight->keep_going();
  };
  return wait_until(rest, &flag, look, [&] {
    return watchdog.check([&] { return trouble_of_peers(field, target); },
                          [&] { return whom_we_wait_for(field, target); });
  });
}

// Any rank that still owes us this flag and never will raise it ends the wait, not only the one
// whose turn it is.
std::string IntraNodeCommunicator::trouble_of_peers(Flag Line::* field, uint64_t target) const {
  for (int r = 0; r < size(); ++r) {
    if (r == rank_ || (line(r).*field).reached(target)) continue;
    const std::string trouble = segment_->trouble(members_[static_cast<size_t>(r)].segment_place);
    // It may have raised the flag and left between our two looks.
    if (!trouble.empty() && !(line(r).*field).reached(target)) return trouble;
  }
  return "";
}

// The ranks that have not come, each with the last collective that it was seen in.
std::string IntraNodeCommunicator::whom_we_wait_for(Flag Line::* field, uint64_t target) const {
  std::string absentees;
  const uint64_t sequence = op_state_.sequence();
  for (int r = 0; r < size(); ++r) {
    if (r == rank_ || (line(r).*field).reached(target)) continue;
    absentees +=
        (absentees.empty() ? "" : ", ") + std::to_string(members_[static_cast<size_t>(r)].job_rank);
    if (line(r).signature_count.load() > sequence)
      absentees += " (stopped in the middle of it)";
    else if (sequence > 0)  // a signature that it cannot overwrite before we are done here
      absentees += " (last seen in " + signature(r, sequence - 1).describe() + ")";
  }
  return absentees.empty() ? "none" : absentees;
}

}  // namespace ringar
