// Streams, and the marks in them that events are.

#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace standin {

// A place in a stream; what came before it has run once it is passed.
struct Mark {
  std::atomic<bool> passed{false};
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(int device) : device(device) {}

  // Runs it after all that was enqueued before, on the stream's thread, which it starts.
  void enqueue(std::function<void()> operation);
  // The place behind all that was enqueued before.
  std::shared_ptr<Mark> mark();
  // Ends the thread after all that was enqueued.
  void close();

  const int device;
  std::atomic<bool> is_capturing{false};
  // Operations of communicators that are in progress: they have been called, and not yet enqueued.
  std::atomic<int> announced{0};

 private:
  static void work(const std::shared_ptr<Stream>& stream);

  std::mutex mutex_;
  std::condition_variable change_;
  std::deque<std::function<void()>> operations_;
  bool is_started_ = false, is_closed_ = false;
};

struct Event {
  explicit Event(int device) : device(device) {}

  const int device;
  std::mutex mutex;
  std::shared_ptr<Mark> latest;  // null: never recorded
};

}  // namespace standin
