#include "engine/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace ringar {

using Clock = std::chrono::steady_clock;

struct alignas(1024) Arena::Record {
  std::atomic<uint32_t> generation;
  std::atomic<uint32_t> state;
  std::atomic<int32_t> pid;
  std::atomic<uint32_t> gave_up_in;  // the last generation in which it did; they begin at 1
  char why[992];                     // stable once it has, in that generation
  std::atomic<uint64_t> tuning;
};

namespace {

constexpr off_t kLocks = off_t{1} << 62;

struct flock byte_lock(int rank) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = kLocks + rank;
  lock.l_len = 1;
  return lock;
}

// Never shrinks the file, so ranks may race.
bool extend(int fd, uint64_t end) {
  const char zero = 0;
  return pwrite(fd, &zero, 1, static_cast<off_t>(end - 1)) == 1;
}

}  // namespace

Arena::Arena(int fd, int rank, int size, std::vector<int> names)
    : fd_(fd), rank_(rank), size_(size), names_(std::move(names)) {
  for (int r = static_cast<int>(names_.size()); r < size; ++r) names_.push_back(r);
}

Arena::~Arena() {
  if (records_) munmap(records_, sizeof(Record) * static_cast<size_t>(size_));
}

uint64_t Arena::base() const {
  return kGenerationBytes * generation_;
}

Status Arena::join(double timeout_seconds, uint64_t tuning) {
  // Behind the records, so that it overwrites none that another rank has filled.
  const size_t bytes = sizeof(Record) * static_cast<size_t>(size_);
  // A process that a rank has started inherits the number, but maybe not the memory: it could be
  // any file by now. Only files in memory have seals.
  if (fcntl(fd_, F_GET_SEALS) < 0 || !extend(fd_, bytes + 1))
    return {RINGAR_OUT_OF_MEMORY,
            "cannot write to the shared memory of this job (RINGAR_ARENA_FD=" +
                std::to_string(fd_) + "): " + std::strerror(errno) +
                ". Start the ranks with ringarrun; a process that a rank has started is none."};
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED)
    return {RINGAR_OUT_OF_MEMORY,
            std::string("cannot map the shared memory of this job: ") + std::strerror(errno)};
  records_ = static_cast<Record*>(memory);

  Record& mine = records_[rank_];
  if (!lock_own_byte())
    return {RINGAR_MISMATCH, "another process already is rank " + name(rank_) +
                                 " of this job: start each rank once"};
  mine.pid.store(getpid());
  mine.tuning.store(tuning);
  generation_ = mine.generation.load() + 1;
  mine.state.store(kRunning);
  mine.generation.store(generation_);

  const auto start = Clock::now();
  auto nap = std::chrono::microseconds(50);
  for (std::string absent; !(absent = absent_ranks()).empty();) {
    if (Clock::now() - start > std::chrono::duration<double>(timeout_seconds)) {
      // As if it had never come, or the ranks' next attempts would count generations differently.
      mine.generation.store(generation_ - 1);
      return too_late(absent, timeout_seconds);
    }
    std::this_thread::sleep_for(nap);
    nap = std::min(nap * 2, std::chrono::microseconds(5000));
  }
  forget_last_generation();
  return compare_tuning();
}

Status Arena::compare_tuning() const {
  for (int r = 0; r < size_; ++r)
    if (records_[r].tuning.load() != records_[0].tuning.load())
      return {RINGAR_MISMATCH,
              "expected the same RINGAR_TUNING on all ranks, received another one "
              "on rank " +
                  name(r) + " than on rank " + name(0)};
  return {};
}

// All ranks have ended it: nobody looks at its memory any longer.
void Arena::forget_last_generation() {
  if (rank_ == 0 && generation_ > 1)
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(base() - kGenerationBytes), static_cast<off_t>(kGenerationBytes));
}

Status Arena::too_late(const std::string& absent, double timeout_seconds) const {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g", timeout_seconds);
  return {RINGAR_DEADLINE, "expected all " + std::to_string(size_) +
                               " ranks in ringar.init(), but after " + seconds +
                               " s still waiting for rank " + absent +
                               ". Does every rank call ringar.init()? A slow start needs a longer "
                               "--start-timeout."};
}

std::string Arena::absent_ranks() const {
  std::string absent;
  for (int r = 0; r < size_; ++r)
    if (records_[r].generation.load() < generation_)
      absent += (absent.empty() ? "" : ", ") + name(r);
  return absent;
}

void Arena::leave() {
  if (!records_) return;
  // Why it has given up names the rank at fault; that it then left, too, would hide that.
  std::atomic<uint32_t>& state = records_[rank_].state;
  if (state.load() != kGaveUp) state.store(kLeft);
}

void Arena::give_up(const std::string& why) {
  const std::lock_guard<std::mutex> lock(giving_up_);
  Record& mine = records_[rank_];
  if (mine.state.load() == kGaveUp) return;
  const size_t n = fitting(why, sizeof mine.why - 1);
  std::memcpy(mine.why, why.data(), n);
  mine.why[n] = '\0';
  mine.gave_up_in.store(generation_);
  mine.state.store(kGaveUp);
}

bool Arena::lock_own_byte() {
  struct flock lock = byte_lock(rank_);
  return fcntl(fd_, F_SETLK, &lock) == 0;
}

bool Arena::is_alive(int rank) const {
  // A process does not see its own locks: ranks that share one (in tests) live as long as it does.
  if (records_[rank].pid.load() == getpid()) return true;
  struct flock lock = byte_lock(rank);
  return fcntl(fd_, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

std::string Arena::death(int rank) const {
  if (is_alive(rank) || records_[rank].state.load() != kRunning) return "";
  return "rank " + name(rank) +
         " has died: its process is gone (killed or crashed; see its output)";
}

std::string Arena::trouble(int rank) const {
  const Record& record = records_[rank];
  const std::string lost = loss(rank);
  if (!lost.empty()) return lost;
  if (record.generation.load() != generation_ || record.state.load() == kLeft)
    return "rank " + name(rank) + " has left: it called ringar.shutdown() or its program ended";
  return "";
}

std::string Arena::loss(int rank) const {
  const Record& record = records_[rank];
  const std::string died = death(rank);
  if (!died.empty()) return died;
  if (record.gave_up_in.load() == generation_)
    return "rank " + name(rank) + " has given up: " + record.why;
  return "";
}

std::byte* Arena::map(uint64_t offset, size_t bytes) {
  return extend(fd_, base() + offset + bytes) ? map_provided(offset, bytes) : nullptr;
}

bool Arena::provide(uint64_t offset, size_t bytes) {
  int failed = 0;
  do {
    failed = fallocate(fd_, 0, static_cast<off_t>(base() + offset), static_cast<off_t>(bytes));
  } while (failed != 0 && errno == EINTR);
  return failed == 0;
}

std::byte* Arena::map_provided(uint64_t offset, size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_,
                      static_cast<off_t>(base() + offset));
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

void Arena::unmap(std::byte* memory, size_t bytes) {
  munmap(memory, bytes);
}

void Arena::discard(uint64_t offset, size_t bytes) {
  fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(base() + offset),
            static_cast<off_t>(bytes));
}

}  // namespace ringar
