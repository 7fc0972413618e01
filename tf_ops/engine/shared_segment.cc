#include "engine/shared_segment.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "engine/limits.h"
#include "engine/tuning.h"
#include "engine/wait.h"

// Of <linux/mman.h>, which older systems lack.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace ringar {

struct alignas(1024) SharedSegment::Record {
  // The last generation in which it has joined, left and given up; they begin at 1.
  std::atomic<uint32_t> generation, left_in, gave_up_in;
  char why[992];  // stable once it has given up, in that generation
  // Stable once it has joined. Two of them, since a rank may try to start again while another one
  // still compares.
  struct Start {
    uint64_t tuning;
    int64_t choice;
    uint64_t generation_bytes;  // of its layout
    uint64_t pool;              // bytes of its part, 0 for none
    char lack[400];             // of memory, or ""
    Processors processors;
  } starts[2];

  Start& start(uint32_t of) { return starts[of % 2]; }
};

namespace {

constexpr Rest kUntilAllCome{0, 50e-6, 5e-3};

uint64_t file_size_limit() {
  rlimit limit{};
  const bool is_limited = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return is_limited ? limit.rlim_cur : UINT64_MAX;
}

// Only files in memory have seals; a system without seals still tells their name.
bool is_in_memory(int fd) {
  if (fcntl(fd, F_GET_SEALS) >= 0) return true;
  const int error = errno;
  char name[64] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const bool is_named = readlink(link.c_str(), name, sizeof name - 1) > 0 &&
                        std::strncmp(name, "/memfd:ringar", 13) == 0;
  errno = error;
  return is_named;
}

std::string megabytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MB", bytes / 1e6);
  return text;
}

}  // namespace

// In whole pages: a generation follows.
size_t SharedSegment::bytes_of_records(int size) {
  return page_up(sizeof(Record) * static_cast<size_t>(size));
}

Layout Layout::of(uint64_t limit, uint64_t records) {
  if (limit >= (kLimitedGenerations + 1) * kUnlimited) return {};
  const uint64_t room = limit > records ? (limit - records) / kLimitedGenerations : 0;
  return {room / 8 / page_bytes() * 8 * page_bytes()};
}

uint64_t Layout::end_of_region(uint64_t offset) const {
  for (const uint64_t end : {outputs(), windows(), messages()})
    if (offset < end) return end;
  return generation;
}

SharedSegment::SharedSegment(int fd, int rank, int size, std::vector<int> names, int news_fd)
    : fd_(fd),
      news_fd_(news_fd),
      rank_(rank),
      size_(size),
      names_(std::move(names)),
      layout_(Layout::of(file_size_limit(), bytes_of_records(size))) {
  for (int r = static_cast<int>(names_.size()); r < size; ++r) names_.push_back(r);
}

SharedSegment::~SharedSegment() {
  if (outputs_) outputs_->close();
  if (records_) munmap(records_, bytes_of_records(size_));
  if (owns_file_) close(fd_);
}

uint64_t SharedSegment::base() const {
  if (generation_ == 0) return 0;
  return layout_.is_limited() ? bytes_of_records(size_) + layout_.generation * (generation_ - 1)
                              : layout_.generation * generation_;
}

Status SharedSegment::check_generation() const {
  if (!layout_.is_limited() || generation_ <= Layout::kLimitedGenerations) return {};
  return {
      RINGAR_OUT_OF_MEMORY,
      "expected at most " + std::to_string(Layout::kLimitedGenerations) +
          " calls of ringar.init() in a job with a limit on file sizes, received one more; raise "
          "the limit (ulimit -f unlimited)"};
}

Status SharedSegment::join(double timeout_seconds, uint64_t tuning, const Extent& extent,
                           int64_t* choice, bool pool) {
  RINGAR_RETURN_IF_ERROR(take_lock());
  RINGAR_RETURN_IF_ERROR(keep_file());
  RINGAR_RETURN_IF_ERROR(map_records());
  Record& record = records_[rank_];
  generation_ = record.generation.load() + 1;
  const Status counted = check_generation();
  if (!counted.ok()) return --generation_, counted;
  record.start(generation_).generation_bytes = layout_.generation;
  record.start(generation_).tuning = tuning;
  record.start(generation_).choice = choice ? *choice : 0;
  record.start(generation_).processors = Processors::of_process();
  copy_text(record.start(generation_).lack, reserve(extent, size_).message());
  record.start(generation_).pool = pool ? make_pool() : 0;
  record.generation.store(generation_);

  std::string absentees;
  const auto settled = [&] { return (absentees = absent_ranks()).empty() || has_news(); };
  const bool in_time = wait_at_most(timeout_seconds, kUntilAllCome, settled);
  if (!absentees.empty()) {
    // As if it had never come, or the ranks' next attempts would count generations differently.
    record.generation.store(--generation_);
    if (!in_time) return too_late(absentees, timeout_seconds);
    return {RINGAR_PEER_LOST,
            "expected all ranks in ringar.init(), but one has died; waited for "
            "rank " +
                absentees};
  }
  forget_last_generation();
  if (choice) *choice = records_[0].start(generation_).choice;
  compare_pools();
  return compare_starts();
}

// Returns how long the parts are. Where the system gives large pages to those that ask for them, it
// does when a page is touched, and fallocate() would make small ones: so pages are touched first,
// as far as there is memory, in a way that fails where a store would kill (Linux 5.14).
size_t SharedSegment::make_pool() {
  const uint64_t room = layout_.windows() - layout_.outputs(), begin_of_all = layout_.outputs();
  const size_t bytes =
      std::min<uint64_t>(OutputPool::bytes_for(size_, file_system_bytes()),
                         room / static_cast<uint64_t>(size_) / page_bytes() * page_bytes());
  std::byte* const parts =
      bytes == 0 ? nullptr : map(begin_of_all, bytes * static_cast<size_t>(size_));
  if (!parts) return 0;
  madvise(parts, bytes * static_cast<size_t>(size_), MADV_HUGEPAGE);
  const uint64_t begin = bytes * static_cast<size_t>(rank_);
  const auto provide_pages = [=](uint64_t offset, size_t count) {
    madvise(parts + begin + offset, count, MADV_POPULATE_WRITE);
    return provide(begin_of_all + begin + offset, count);
  };
  outputs_ =
      std::make_shared<OutputPool>(parts, bytes, rank_, size_, provide_pages, is_short_of_memory);
  return bytes;
}

void SharedSegment::compare_pools() {
  for (int r = 0; r < size_; ++r)
    if (records_[r].start(generation_).pool != records_[0].start(generation_).pool)
      return outputs_.reset();
}

Status SharedSegment::take_lock() {
  // A process that a rank has started inherits the number, but maybe not the memory: it could be
  // any file by now.
  if (!is_in_memory(fd_))
    return {RINGAR_OUT_OF_MEMORY,
            "cannot find the shared memory of this job (RINGAR_SEGMENT_FD=" + std::to_string(fd_) +
                "): " + std::strerror(errno) +
                ". Start the ranks with ringarrun; a child process of a rank is no rank."};
  const RankLock::Outcome outcome = lock_.take(fd_, rank_);
  if (outcome == RankLock::Outcome::kFailed)
    return {RINGAR_UNSUPPORTED,
            std::string("expected a system with open file description locks, by which ranks see "
                        "that others live, received: ") +
                std::strerror(errno) +
                ". Linux has them since 3.15; a sandbox may not: run the container without it "
                "(docker run --runtime=runc)"};
  if (outcome == RankLock::Outcome::kHeldByAnother)
    return {RINGAR_MISMATCH, "another process already is rank " + name(rank_) +
                                 " of this job: start each rank once"};
  return {};
}

// The caller may close the descriptor after the start: each world of an elastic job has a file.
Status SharedSegment::keep_file() {
  const int descriptor = owns_file_ ? fd_ : fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0)
    return {RINGAR_OUT_OF_MEMORY,
            std::string("cannot keep the shared memory of this job: ") + std::strerror(errno)};
  fd_ = descriptor;
  owns_file_ = true;
  return {};
}

Status SharedSegment::map_records() {
  const size_t bytes = bytes_of_records(size_);
  RINGAR_RETURN_IF_ERROR(reserve({0, bytes}, size_));
  std::byte* const memory = map(0, bytes);
  if (!memory)
    return {RINGAR_OUT_OF_MEMORY,
            std::string("cannot map the shared memory of this job: ") + std::strerror(errno)};
  records_ = reinterpret_cast<Record*>(memory);
  return {};
}

Status SharedSegment::compare_starts() const {
  for (int r = 0; r < size_; ++r) {
    const Record::Start& start = records_[r].start(generation_);
    if (start.tuning != records_[0].start(generation_).tuning)
      return {RINGAR_MISMATCH,
              "expected the same RINGAR_TUNING on all ranks, received another one "
              "on rank " +
                  name(r) + " than on rank " + name(0)};
    if (start.generation_bytes != layout_.generation)
      return {
          RINGAR_MISMATCH,
          "expected the same limit on file sizes on all ranks (ulimit -f), received another one "
          "on rank " +
              name(r) + " than on rank " + name(rank_)};
    if (start.lack[0] != '\0')
      return {RINGAR_OUT_OF_MEMORY,
              "rank " + name(r) + " has too little shared memory: " + start.lack};
  }
  return {};
}

int SharedSegment::processors() const {
  Processors all;
  for (int r = 0; r < size_; ++r) all.add(records_[r].start(generation_).processors);
  return all.count();
}

// All ranks have ended it: nobody looks at its memory any longer, but at outputs and windows.
void SharedSegment::forget_last_generation() {
  if (rank_ != 0 || generation_ == 1) return;
  const auto forget = [&](uint64_t begin, uint64_t end) {
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(base() - layout_.generation + begin),
              static_cast<off_t>(end - begin));
  };
  forget(0, layout_.outputs());
  forget(layout_.messages(), layout_.generation);
}

Status SharedSegment::too_late(const std::string& absentees, double timeout_seconds) const {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g", timeout_seconds);
  return {RINGAR_DEADLINE, "expected all " + std::to_string(size_) +
                               " ranks in ringar.init(), but after " + seconds +
                               " s still waiting for rank " + absentees +
                               ". Does every rank call ringar.init()? A slow start needs a longer "
                               "--start-timeout."};
}

std::string SharedSegment::absent_ranks() const {
  std::string absentees;
  for (int r = 0; r < size_; ++r)
    if (records_[r].generation.load() < generation_)
      absentees += (absentees.empty() ? "" : ", ") + name(r);
  return absentees;
}

bool SharedSegment::has_news() const {
  pollfd news{news_fd_, POLLIN, 0};
  return news_fd_ > 0 && poll(&news, 1, 0) > 0;
}

// The note comes before the lock goes, and is looked for after it: a rank that leaves never looks
// dead. The process may join again while a thread of this engine still ends.
void SharedSegment::leave() {
  if (outputs_) outputs_->close();
  if (records_) records_[rank_].left_in.store(generation_);
  lock_.release();
}

void SharedSegment::give_up(const std::string& why) {
  const std::lock_guard<std::mutex> lock(giving_up_);
  Record& record = records_[rank_];
  if (record.gave_up_in.load() == generation_) return;
  copy_text(record.why, why);
  record.gave_up_in.store(generation_);
}

bool SharedSegment::is_alive(int rank) const {
  return rank == rank_ || lock_.is_held(rank);
}

std::string SharedSegment::death(int rank) const {
  if (is_alive(rank)) return "";
  const Record& record = records_[rank];
  if (record.left_in.load() == generation_ || record.gave_up_in.load() == generation_) return "";
  return "rank " + name(rank) +
         " has died: its process is gone (killed or crashed; see its output)";
}

std::string SharedSegment::trouble(int rank) const {
  const std::string why = loss(rank);
  return why.empty() ? departure(rank) : why;
}

std::string SharedSegment::absence(int rank) const {
  return is_alive(rank) ? departure(rank) : trouble(rank);
}

std::string SharedSegment::departure(int rank) const {
  const Record& record = records_[rank];
  const bool is_here =
      record.generation.load() == generation_ && record.left_in.load() != generation_;
  return is_here
             ? ""
             : "rank " + name(rank) + " has left: it called ringar.shutdown() or its program ended";
}

std::string SharedSegment::loss(int rank) const {
  const Record& record = records_[rank];
  const std::string died = death(rank);
  if (!died.empty()) return died;
  if (record.gave_up_in.load() == generation_)
    return "rank " + name(rank) + " has given up: " + record.why;
  return "";
}

bool SharedSegment::provide(uint64_t offset, size_t bytes) {
  if (generation_ > 0 && offset + bytes > layout_.end_of_region(offset))
    return errno = EFBIG, false;
  const uint64_t begin = base() + offset;
  int failed = 0;
  do {
    failed = fallocate(fd_, 0, static_cast<off_t>(begin), static_cast<off_t>(bytes));
  } while (failed != 0 && errno == EINTR);
  if (failed != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) return extend(begin + bytes);
  return failed == 0;
}

// Where a sandbox has no fallocate(), pages come as they are touched, and a lack of memory ends the
// process that touches them. The last byte of what ranks provide is padding, or not yet in use.
bool SharedSegment::extend(uint64_t end) const {
  const off_t bytes = lseek(fd_, 0, SEEK_END);
  if (bytes < 0 || static_cast<uint64_t>(bytes) >= end) return bytes >= 0;
  return pwrite(fd_, "", 1, static_cast<off_t>(end - 1)) == 1;
}

// A memfd has no limit of its own, in contrast to a file in /dev/shm.
uint64_t SharedSegment::file_system_bytes() const {
  struct statvfs system{};
  if (fstatvfs(fd_, &system) != 0 || system.f_blocks == 0) return UINT64_MAX;
  return static_cast<uint64_t>(system.f_blocks) * system.f_frsize;
}

std::string SharedSegment::shortage(int error) const {
  if (error == EFBIG)
    return "received a limit of " + megabytes(static_cast<double>(file_size_limit())) +
           " on the size of files (RLIMIT_FSIZE), which bounds shared memory, too; raise it: "
           "ulimit "
           "-f unlimited";
  if (error != ENOMEM && error != ENOSPC) return std::string("received: ") + std::strerror(error);
  struct statvfs system{};
  if (fstatvfs(fd_, &system) != 0 || system.f_blocks == 0)
    return "received none: this host's memory, or what its container may use of it, is full";
  const auto bytes = [&](fsblkcnt_t blocks) {
    return megabytes(static_cast<double>(blocks) * static_cast<double>(system.f_frsize));
  };
  return "received " + bytes(system.f_bavail) + " free of " + bytes(system.f_blocks) +
         " in /dev/shm. Make it larger: docker run --shm-size=1g, or mount -o remount,size=1g "
         "/dev/shm";
}

Status SharedSegment::reserve(const Extent& extent, int ranks) {
  if (extent.bytes == 0 || provide(extent.offset, extent.bytes)) return {};
  const std::string why = shortage(errno);
  return {RINGAR_OUT_OF_MEMORY, "expected " + megabytes(static_cast<double>(extent.bytes)) +
                                    " of shared memory for each of " + std::to_string(ranks) +
                                    " ranks on this host, " + why};
}

std::byte* SharedSegment::map(uint64_t offset, size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_,
                      static_cast<off_t>(base() + offset));
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

void SharedSegment::unmap(std::byte* memory, size_t bytes) {
  munmap(memory, bytes);
}

void SharedSegment::discard(uint64_t offset, size_t bytes) {
  fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(base() + offset),
            static_cast<off_t>(bytes));
}

}  // namespace ringar
