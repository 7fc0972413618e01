// How the ranks of a host see that the process of another one lives: a lock on one byte of the
// segment's file, far behind the data.
//
// The kernel drops the lock when the process ends, however it ends, before anybody reaps it. It
// asks for no pid, so it works across pid namespaces, where ranks may have equal ones. It belongs
// to an open file description and not to the process: a process loses its record locks (F_SETLK) as
// soon as it closes any descriptor of the file.
//
// An open file description lives as long as anything refers to it, and must end with the rank. So
// it is opened for the lock alone: the descriptor that the launcher has passed on is common to all
// ranks, and a mapping would refer to it in every child. A program that a child executes does not
// get it (O_CLOEXEC), and a forked child closes it before fork() returns there.

#pragma once

namespace ringar {

class RankLock {
 public:
  RankLock() = default;
  ~RankLock() { release(); }
  RankLock(const RankLock&) = delete;
  RankLock& operator=(const RankLock&) = delete;

  // Takes the lock of a rank on the file behind a descriptor. kFailed leaves errno.
  enum class Outcome { kTaken, kHeldByAnother, kFailed };
  Outcome take(int file, int rank);
  void release();

  // Whether a process holds the lock of another rank. Only while this one is taken.
  bool is_held(int rank) const;

 private:
  int fd_ = -1;
};

}  // namespace ringar
