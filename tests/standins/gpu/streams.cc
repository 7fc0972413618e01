#include "streams.h"

#include <thread>
#include <utility>

#include "standin.h"

namespace standin {

void Stream::enqueue(std::function<void()> operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  operations_.push_back(std::move(operation));
  change_.notify_one();
  if (is_started_) return;
  is_started_ = true;
  stay();
  // Detached: a process may end while a stream waits for something that does not come.
  std::thread([self = shared_from_this()] { work(self); }).detach();
}

std::shared_ptr<Mark> Stream::mark() {
  const auto mark = std::make_shared<Mark>();
  enqueue([mark] { mark->passed.store(true, std::memory_order_release); });
  return mark;
}

void Stream::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_closed_ = true;
  change_.notify_one();
}

void Stream::work(const std::shared_ptr<Stream>& stream) {
  while (true) {
    std::function<void()> operation;
    {
      std::unique_lock<std::mutex> lock(stream->mutex_);
      stream->change_.wait(lock,
                           [&] { return !stream->operations_.empty() || stream->is_closed_; });
      if (stream->operations_.empty()) return;
      operation = std::move(stream->operations_.front());
      stream->operations_.pop_front();
    }
    operation();
  }
}

}  // namespace standin
