#include "kernels/done.h"

#include <dlfcn.h>

#include <cstring>
#include <utility>

#include "kernels/tensorflow.h"

namespace ringar {
namespace {

using Done = std::function<void()>;

// Of libstdc++: the two functions belong to the library that has made the object.
struct DoneLayout {
  const void* captured[2];
  const void* manager;
  const void* invoker;
};
static_assert(sizeof(DoneLayout) == sizeof(Done), "expected the std::function of libstdc++");

Done& function_at(TF_AsyncOpKernelDoneCallback* done) {
  return *reinterpret_cast<Done*>(done);
}

bool is_in_a_library(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0;
}

// Without this look, the trial below would replace whatever lies there instead.
bool looks_like_a_function(const TF_AsyncOpKernelDoneCallback* done) {
  DoneLayout layout;
  std::memcpy(&layout, done, sizeof layout);
  return is_in_a_library(layout.manager) && is_in_a_library(layout.invoker);
}

bool runs_ours_in_its_place(TF_AsyncOpKernelDoneCallback* done) {
  int runs = 0;
  Done probe = [&runs] { ++runs; };
  function_at(done).swap(probe);
  tensorflow().TF_RunAsyncOpKernelDoneCallback(done);
  function_at(done).swap(probe);
  return runs == 1;
}

}  // namespace

const Status& check_done(TF_AsyncOpKernelDoneCallback* done) {
  static const Status checked =
      looks_like_a_function(done) && runs_ours_in_its_place(done)
          ? Status()
          : Status(RINGAR_UNSUPPORTED,
                   "expected TensorFlow to pass a std::function<void()> of libstdc++ as the "
                   "callback of an asynchronous op, received something else: this release of "
                   "TensorFlow runs no collective of ringar asynchronously. Use an earlier "
                   "release, or call the collective in eager code.");
  return checked;
}

Done take_done(TF_AsyncOpKernelDoneCallback* done) {
  return std::move(function_at(done));
}

}  // namespace ringar
