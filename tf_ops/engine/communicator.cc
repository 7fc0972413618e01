#include "engine/communicator.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "algorithms/shared_memory.h"

namespace ringar {

using Clock = std::chrono::steady_clock;

// Written by its owner alone; one cache line (and its prefetched neighbour) per flag.
struct Communicator::Line {
  alignas(128) Flag arrived;
  alignas(128) Flag reduced;
  std::atomic<uint64_t> begun;  // collectives whose signature is written
  alignas(128) Signature signatures[2];
};

namespace {

constexpr long kHealthCheckNanoseconds = 20'000'000;

size_t page_up(size_t bytes) {
  return (bytes + 4095) / 4096 * 4096;
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", value);
  return text;
}

}  // namespace

// A rank's part of the arena: its line, two outboxes, two result boxes; page by page, so that no
// two ranks write to one page.
size_t Communicator::arena_bytes(int size) {
  const size_t n = static_cast<size_t>(size);
  return n * (page_up(sizeof(Line)) + 2 * (n + 1) * tuning_for(n).slice_bytes);
}

Communicator::Communicator(int id, std::vector<int> ranks, int rank, Arena* arena, uint64_t offset,
                           const Patience& patience)
    : id_(id),
      ranks_(std::move(ranks)),
      rank_(rank),
      arena_(arena),
      patience_(patience),
      tuning_(tuning_for(ranks_.size())),
      part_bytes_(arena_bytes(size()) / ranks_.size()),
      workspace_(ranks_.size()) {
  if (size() > 1) memory_ = arena_->map(offset, arena_bytes(size()));
}

Communicator::~Communicator() {
  if (memory_) arena_->unmap(memory_, arena_bytes(size()));
}

Communicator::Line& Communicator::line(int rank) const {
  return *reinterpret_cast<Line*>(memory_ + part_bytes_ * static_cast<size_t>(rank));
}

std::byte* Communicator::outbox(int rank) const {
  auto* boxes = reinterpret_cast<std::byte*>(&line(rank)) + page_up(sizeof(Line));
  return boxes + (step_ % 2) * outbox_bytes();
}

std::byte* Communicator::result(int rank, uint64_t step) const {
  auto* boxes = reinterpret_cast<std::byte*>(&line(rank)) + page_up(sizeof(Line));
  return boxes + 2 * outbox_bytes() + (step % 2) * slice_bytes();
}

Signature& Communicator::signature(int rank, uint64_t sequence) const {
  return line(rank).signatures[sequence % 2];
}

std::string Communicator::prefix() const {
  return "rank " + std::to_string(ranks_[static_cast<size_t>(rank_)]) + " | " +
         current_.describe() + ": ";
}

Status Communicator::run(Request& request) {
  if (!broken_.ok()) return broken_;
  current_ = Signature::of(request, size(), sequence_);
  tracing_ = Timeline::instance().on();
  const int64_t begin = tracing_ ? monotonic_ns() : 0;
  Status status;
  if (size() > 1)
    status = current_.rejected ? open() : run_in_shared_memory(*this, request);
  else
    status = current_.rejected ? disagreement({current_}, ranks_, id_) : run_alone(request);
  ++sequence_;
  if (tracing_) {
    Timeline::instance().collective(request, current_.title(), begin, trace_);
    trace_.clear();
  }
  if (status.ok()) return status;
  status = Status(status.code(), prefix() + status.message());
  if (status.code() != RINGAR_MISMATCH) {
    broken_ = status;
    if (arena_) arena_->give_up(status.message());
  }
  return status;
}

Status Communicator::open() {
  current_.copy_to(signature(rank_, sequence_));
  line(rank_).begun.store(sequence_ + 1);
  RINGAR_RETURN_IF_ERROR(exchange());
  const Status status = compare_signatures();
  if (!status.ok()) finish_step();
  return status;
}

Status Communicator::compare_signatures() const {
  bool agree = !current_.rejected;
  for (int r = 0; r < size() && agree; ++r)
    agree = r == rank_ || current_.agrees_with(signature(r, sequence_));
  if (agree) return {};
  std::vector<Signature> all;
  for (int r = 0; r < size(); ++r) all.push_back(signature(r, sequence_));
  return disagreement(all, ranks_, id_);
}

Status Communicator::exchange() {
  line(rank_).arrived.store(step_ + 1);
  for (int r = 0; r < size(); ++r)
    if (r != rank_) RINGAR_RETURN_IF_ERROR(wait(&Line::arrived, step_ + 1, r));
  return {};
}

void Communicator::finish_step() {
  ++step_;
}

void Communicator::post_result() {
  line(rank_).reduced.store(step_ + 1);
}

Status Communicator::wait_for_result(int rank, uint64_t step) {
  return wait(&Line::reduced, step + 1, rank);
}

Status Communicator::wait(Flag Line::* which, uint64_t target, int rank) {
  const Flag& flag = line(rank).*which;
  for (int i = 0; i < 64; ++i) {
    if (flag.reached(target)) return {};
    relax();
  }
  const int64_t begin = tracing_ ? monotonic_ns() : 0;
  const Status status = wait_patiently(which, target, rank);
  if (tracing_) trace_.add(Stretch::kWait, begin, ranks_[static_cast<size_t>(rank)]);
  return status;
}

// Yields between looks, so that a core shared with computing threads is not taken from them, then
// sleeps, and looks after the missing rank's health each time it wakes.
Status Communicator::wait_patiently(Flag Line::* which, uint64_t target, int rank) {
  Flag& flag = line(rank).*which;
  const auto start = Clock::now();
  const auto spin_until = start + std::chrono::microseconds(patience_.spin_microseconds);
  while (Clock::now() < spin_until) {
    for (int i = 0; i < 16; ++i) {
      if (flag.reached(target)) return {};
      relax();
    }
    sched_yield();
  }

  double warn_at = patience_.stall_warning;
  for (;;) {
    const uint64_t seen = flag.load();
    if (seen >= target) return {};
    flag.sleep(seen, kHealthCheckNanoseconds);
    if (flag.reached(target)) return {};

    RINGAR_RETURN_IF_ERROR(look_after_peers(which, target));
    if (patience_.stop && patience_.stop->load())
      return {RINGAR_PEER_LOST, "this rank shut ringar down before rank " +
                                    whom_we_wait_for(which, target) + " took part"};

    const double waited = seconds_since(start);
    if (waited > patience_.deadline)
      return {RINGAR_DEADLINE,
              "expected every rank within the deadline of " + seconds(patience_.deadline) +
                  ", still waiting for rank " + whom_we_wait_for(which, target) +
                  ". If it is only slow, raise the deadline (ringar.init(deadline=...), "
                  "RINGAR_DEADLINE or ringarrun --deadline)."};
    if (waited > warn_at) {
      std::fprintf(stderr, "%shas waited %s for rank %s\n", prefix().c_str(),
                   seconds(waited).c_str(), whom_we_wait_for(which, target).c_str());
      warn_at *= 2;
    }
  }
}

// Any rank that still owes us this flag and never will raise it ends the wait, not only the one
// whose turn it is.
Status Communicator::look_after_peers(Flag Line::* which, uint64_t target) const {
  for (int r = 0; r < size(); ++r) {
    if (r == rank_ || (line(r).*which).reached(target)) continue;
    const std::string trouble = arena_->trouble(ranks_[static_cast<size_t>(r)]);
    // It may have raised the flag and left between our two looks.
    if (trouble.empty() || (line(r).*which).reached(target)) continue;
    return {RINGAR_PEER_LOST, "expected all ranks to take part, but " + trouble};
  }
  return {};
}

// The ranks that have not come, each with the last collective that it was seen in.
std::string Communicator::whom_we_wait_for(Flag Line::* which, uint64_t target) const {
  std::string late;
  for (int r = 0; r < size(); ++r) {
    if (r == rank_ || (line(r).*which).reached(target)) continue;
    late += (late.empty() ? "" : ", ") + std::to_string(ranks_[static_cast<size_t>(r)]);
    if (line(r).begun.load() > sequence_)
      late += " (stopped in the middle of it)";
    else if (sequence_ > 0)  // a signature that it cannot overwrite before we are done here
      late += " (last seen in " + signature(r, sequence_ - 1).describe() + ")";
  }
  return late.empty() ? "none" : late;
}

}  // namespace ringar
