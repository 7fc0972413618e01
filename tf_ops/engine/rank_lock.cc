#include "engine/rank_lock.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <set>
#include <string>

namespace ringar {
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

// The descriptors of this process' locks, for its forked children. Never destroyed: a thread may
// still look when the process ends.
struct HeldLocks {
  std::mutex mutex;
  std::set<int*> descriptors;

  HeldLocks() {
    pthread_atfork([] { instance().mutex.lock(); }, [] { instance().mutex.unlock(); },
                   [] {
                     for (int* fd : instance().descriptors) {
                       close(*fd);
                       *fd = -1;
                     }
                     instance().descriptors.clear();
                     instance().mutex.unlock();
                   });
  }
  static HeldLocks& instance() {
    static HeldLocks& all = *new HeldLocks;
    return all;
  }
};

}  // namespace

RankLock::Outcome RankLock::take(int file, int rank) {
  HeldLocks& locks = HeldLocks::instance();
  const std::lock_guard<std::mutex> guard(locks.mutex);
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return Outcome::kFailed;
  struct flock lock = byte_lock(rank);
  if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
    const int error = errno;
    close(fd);
    errno = error;
    return error == EAGAIN || error == EACCES ? Outcome::kHeldByAnother : Outcome::kFailed;
  }
  fd_ = fd;
  locks.descriptors.insert(&fd_);
  return Outcome::kTaken;
}

void RankLock::release() {
  HeldLocks& locks = HeldLocks::instance();
  const std::lock_guard<std::mutex> guard(locks.mutex);
  if (fd_ < 0) return;
  locks.descriptors.erase(&fd_);
  close(fd_);
  fd_ = -1;
}

bool RankLock::is_held(int rank) const {
  const std::lock_guard<std::mutex> guard(HeldLocks::instance().mutex);
  struct flock lock = byte_lock(rank);
  return fcntl(fd_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace ringar
