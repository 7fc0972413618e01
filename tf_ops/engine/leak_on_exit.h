// For memory that something outside may still use when its owner ends: it lives as long as the
// process, and leak checkers find it.

#pragma once

#include <deque>
#include <mutex>
#include <utility>

namespace ringar {

template <typename T>
void leak_on_exit(T owner) {
  static std::mutex mutex;
  static auto* const owners = new std::deque<T>;
  const std::lock_guard<std::mutex> lock(mutex);
  owners->push_back(std::move(owner));
}

}  // namespace ringar
