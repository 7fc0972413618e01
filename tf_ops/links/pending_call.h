// The calls of CUDA and NCCL that are under way in this process, for a thread that looks after
// those that never return: a driver whose GPU hangs keeps its callers, and no deadline of theirs
// ends them.

#pragma once

#include <cstdint>

namespace ringar {

// Notes a call as long as it lasts.
class PendingCall {
 public:
  explicit PendingCall(const char* name);
  ~PendingCall();
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  // From now on on this thread: somebody else looks after its calls.
  static void ignore_on_this_thread();

 private:
  struct CallSlot* slot_;
};

// The call that has been under way for the longest time; a null name: there is none.
struct LongestCall {
  const char* name = nullptr;
  double seconds = 0;
};
LongestCall longest_call();

// A function of a library, whose calls are noted.
template <typename Function>
class Noted;
template <typename Result, typename... Arguments>
class Noted<Result(Arguments...)> {
 public:
  using Pointer = Result (*)(Arguments...);

  void bind(const char* name, void* symbol) {
    name_ = name;
    function_ = reinterpret_cast<Pointer>(symbol);
  }
  Pointer pointer() const { return function_; }
  Result operator()(Arguments... arguments) const {
    const PendingCall pending(name_);
    return function_(arguments...);
  }

 private:
  const char* name_ = nullptr;
  Pointer function_ = nullptr;
};

}  // namespace ringar
