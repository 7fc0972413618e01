// The CUDA driver: its functions, its errors, and whose context is current.

#pragma once

#include <string>

#include "engine/status.h"
#include "links/cuda_abi.h"

namespace ringar {

struct Cuda : cuda::Functions {
  // The result of a call, as a Status that names the call and CUDA's text of the error.
  Status check(const char* call, cuda::Result result) const;
};

// RINGAR_CUDA(driver, EventRecord, event, stream): the call, as a Status.
#define RINGAR_CUDA(driver, name, ...) (driver).check("cu" #name, (driver).name(__VA_ARGS__))

// Opened and initialized once; later calls get the same answer. `library` may be empty:
// libcuda.so.1.
Status open_cuda(const std::string& library, const Cuda** driver);

// Makes a context current on this thread, and the one before it afterwards. Meanwhile the thread
// may do what would end the capture of a CUDA graph on another one: ask for an event, say.
class CurrentContext {
 public:
  CurrentContext(const Cuda& driver, cuda::Context context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  const Status& status() const { return status_; }

 private:
  const Cuda& driver_;
  const Status status_;
  int capture_mode_ = cuda::kCaptureRelaxed;
};

}  // namespace ringar
