// What the parts of the library know of the driver's objects.

#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "handles.h"
#include "standin.h"
#include "streams.h"

namespace standin {

Handles<Stream, ringar::cuda::Stream>& streams();
Handles<Event, ringar::cuda::Event>& events();

// The default streams are those of `device`. Null, and a misuse, if there is no such stream.
std::shared_ptr<Stream> find_stream(ringar::cuda::Stream stream, int device, const char* call);
bool is_default(ringar::cuda::Stream stream);
// A stream must rest while a communicator that uses it is in progress.
void must_rest(const Stream& stream, const char* call);
// How often contexts were retained and not released, on all devices.
size_t retained_contexts();
// The device of this thread's current context; -1: there is none.
int current_device();
bool is_initialized();

// The arguments of one call of the driver: finds what they stand for, and keeps the first error.
class Arguments {
 public:
  // Needs a current context.
  explicit Arguments(const char* call);

  std::shared_ptr<Stream> stream(ringar::cuda::Stream stream);
  std::shared_ptr<Event> event(ringar::cuda::Event event);
  void need(bool is_right, const std::string& otherwise,
            ringar::cuda::Result error = ringar::cuda::kInvalidValue);
  // What CUDA forbids while any thread captures a stream, but for threads that have relaxed it.
  void need_no_capture();

  const char* const call;
  int device = -1;
  ringar::cuda::Result error = ringar::cuda::kSuccess;

 private:
  void need_device(int device, const char* object);
};

}  // namespace standin
