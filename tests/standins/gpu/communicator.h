// A communicator, as one rank has it.
//
// It is in progress while a job of it runs: the ranks' meeting at its begin, a split, the launch of
// a group, the end. Jobs have threads of their own.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "arithmetic.h"
#include "handles.h"
#include "meeting.h"

namespace standin {

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(int ranks, int rank, int device) : ranks(ranks), rank(rank), device(device) {}

  // Is in progress until the job is done, which runs in another thread.
  void start(std::function<void()> job);
  // ncclSuccess, ncclInProgress, or the error.
  ringar::nccl::Result state() const;

  // Comes to a meeting and waits for the others.
  bool meet(const Invitation& invitation);
  // Waits until there is nothing under way on any rank, two seconds at most for the others.
  void finalize();
  // Ends what is under way.
  void abort();

  // The error of this rank, or of all ranks; the first one stays.
  void fail(ringar::nccl::Result code, const std::string& text);
  void fail_all(ringar::nccl::Result code, const std::string& text);
  // An error of this rank, after the seconds of standin_lateness().
  void fail_late(const std::string& text);
  // Whether it was aborted, or has an error, of this rank or of another one.
  bool is_stopped();
  // Waits until it is aborted.
  void wait_for_abort() const;

  // Operations run in the order of their calls, one at a time; false: this one does not. The end of
  // one that has begun.
  bool begin(uint64_t number);
  void end();

  const int ranks, rank, device;
  std::shared_ptr<Meeting> meeting;  // null until the first rank has come
  std::atomic<bool> is_aborted{false}, is_finalized{false};
  std::atomic<int> in_progress{0};       // jobs
  std::atomic<int> running{0};           // operations that their streams have come to
  std::atomic<int> pending{0};           // operations that were called and have not ended
  std::atomic<uint64_t> called{0};       // operations so far
  std::atomic<uint64_t> collectives{0};  // of them, those that have begun and are no messages alone
  std::atomic<int> splits{0};

 private:
  std::atomic<ringar::nccl::Result> error_{0};
  std::atomic<double> look_at_{0};  // after dead ranks
  std::mutex mutex_;
  uint64_t completions_ = 0;  // operations so far
  bool is_running_ = false;
};

Handles<Communicator, ringar::nccl::Comm>& communicators();

// What ncclGetLastError says.
void note_error(const std::string& text);
std::string last_error();

// Operations that were made and not destroyed; groups that were started and not ended.
size_t open_redops();
size_t open_groups();

// The operation that a call names. False, and a misuse, if it does not fit.
bool find_reduction(ringar::nccl::RedOp op, ringar::nccl::DataType type,
                    const Communicator& communicator, const char* call, Reduction* reduction);
void forget_redops(const Communicator& communicator);

}  // namespace standin
