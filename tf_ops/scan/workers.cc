#include "scan/workers.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

namespace ringar {
namespace {

struct Job {
  const std::function<void(int64_t)>& task;
  const int64_t tasks;
  std::atomic<int64_t> next{0};

  std::mutex mutex{};
  std::exception_ptr failure{};

  void work() {
    try {
      for (int64_t i = next++; i < tasks; i = next++) task(i);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  }
};

// Never destroyed: its threads end with the process.
class Workers {
 public:
  void run(int helpers, Job& job) {
    const std::lock_guard<std::mutex> turn(turn_);
    start(helpers);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      request_count_ = helpers;
    }
    work_is_there_.notify_all();
    job.work();
    std::unique_lock<std::mutex> lock(mutex_);
    request_count_ = 0;  // who has not woken up by now is not needed
    all_are_done_.wait(lock, [this] { return busy_ == 0; });
    job_ = nullptr;
  }

 private:
  // Without as many as were asked for, the caller does more itself.
  void start(int helpers) {
    try {
      for (; started_ < helpers; ++started_) std::thread(&Workers::serve, this).detach();
    } catch (const std::system_error&) {
    }
  }

  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      work_is_there_.wait(lock, [this] { return request_count_ > 0; });
      --request_count_;
      ++busy_;
      Job& job = *job_;
      lock.unlock();
      job.work();
      lock.lock();
      if (--busy_ == 0) all_are_done_.notify_one();
    }
  }

  std::mutex turn_, mutex_;
  std::condition_variable work_is_there_, all_are_done_;
  Job* job_ = nullptr;
  int request_count_ = 0, busy_ = 0, started_ = 0;
};

// A forked process has none of its parent's threads, and starts its own.
Workers& workers() {
  static std::mutex mutex;
  static Workers* all = nullptr;
  static pid_t owner = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  if (owner != getpid()) {
    all = new Workers;
    owner = getpid();
  }
  return *all;
}

}  // namespace

void parallel_for(int threads, int64_t tasks, const std::function<void(int64_t)>& task) {
  Job job{task, tasks};
  const auto helpers = static_cast<int>(std::min<int64_t>(threads, tasks)) - 1;
  helpers < 1 ? job.work() : workers().run(helpers, job);
  if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace ringar
