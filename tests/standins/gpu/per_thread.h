// What each thread has of its own.
//
// No thread_local: of a library that a program opens while it runs, the loader frees that memory in
// another thread, which ThreadSanitizer takes for a data race.

#pragma once

#include <pthread.h>

namespace standin {

template <typename T>
class PerThread {
 public:
  PerThread() {
    pthread_key_create(&key_, [](void* value) { delete static_cast<T*>(value); });
  }
  PerThread(const PerThread&) = delete;
  void operator=(const PerThread&) = delete;

  T& operator*() const {
    auto* value = static_cast<T*>(pthread_getspecific(key_));
    if (!value) pthread_setspecific(key_, value = new T());
    return *value;
  }
  T* operator->() const { return &**this; }

 private:
  pthread_key_t key_;
};

}  // namespace standin
