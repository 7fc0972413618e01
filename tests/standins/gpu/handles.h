// Handles that are no pointers: an address that no process has, and never the same one twice, so
// that a handle that was destroyed is known as such.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "standin.h"

namespace standin {

template <typename T, typename Handle>
class Handles {
 public:
  // `kind` tells the handles of one type from those of others.
  Handles(const char* name, uint64_t kind) : name_(name), base_(uint64_t{0x5a} << 56 | kind << 48) {
    next_ = base_;
  }

  Handle add(std::shared_ptr<T> object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    next_ += 16;
    objects_[next_] = std::move(object);
    return reinterpret_cast<Handle>(next_);
  }

  // Null, and a misuse, if there is no such object.
  std::shared_ptr<T> find(Handle handle, const char* call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = objects_.find(reinterpret_cast<uint64_t>(handle));
    if (entry != objects_.end()) return entry->second;
    complain(handle, call);
    return nullptr;
  }

  std::shared_ptr<T> remove(Handle handle, const char* call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = objects_.find(reinterpret_cast<uint64_t>(handle));
    if (entry == objects_.end()) {
      complain(handle, call);
      return nullptr;
    }
    const std::shared_ptr<T> object = std::move(entry->second);
    objects_.erase(entry);
    return object;
  }

  // Of one device, or of all: -1.
  size_t count(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (device < 0) return objects_.size();
    size_t count = 0;
    for (const auto& entry : objects_) count += entry.second->device == device;
    return count;
  }

 private:
  void complain(Handle handle, const char* call) const {
    const auto value = reinterpret_cast<uint64_t>(handle);
    const bool was_one = value > base_ && value <= next_ && value % 16 == 0;
    misuse(call, text("%#llx %s %s", static_cast<unsigned long long>(value),
                      was_one ? "is a destroyed" : "is no", name_));
  }

  std::mutex mutex_;
  const char* const name_;
  const uint64_t base_;
  uint64_t next_;
  std::map<uint64_t, std::shared_ptr<T>> objects_;
};

}  // namespace standin
