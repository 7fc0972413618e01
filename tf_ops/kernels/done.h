// The callback of an asynchronous TensorFlow kernel, which outlives the compute function.
//
// TensorFlow passes the address of a std::function on the caller's stack, and its C API has no way
// to keep it. So the function is taken from there before compute returns: calling TensorFlow's
// pointer later would read a dead frame. That is an assumption about a layout. The first callback
// of a process tries it: TensorFlow must run a function of ours that lies in the place of its own.

#pragma once

#include <functional>

#include "engine/status.h"
#include "kernels/tf_c_api.h"

namespace ringar {

// Whether functions can be taken from callbacks like this one; leaves it as it is.
const Status& check_done(TF_AsyncOpKernelDoneCallback* done);

// Takes the function; needs the check.
std::function<void()> take_done(TF_AsyncOpKernelDoneCallback* done);

}  // namespace ringar
