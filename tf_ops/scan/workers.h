// Threads that share the tasks of one call.

#pragma once

#include <cstdint>
#include <functional>

namespace ringar {

// Runs task(0) … task(tasks - 1), at most `threads` at a time, the caller's thread among them, and
// returns when all are done. Calls of several threads at once take turns. What a
// task throws is thrown again, when all have ended.
//
// TensorFlow's intra-op pool cannot be reached from here: its C API does not hand it out. These
// threads sleep while nothing is to be done, and TensorFlow's own sleep while a kernel of ours
// runs, so that no more are awake than TensorFlow was told to use.
void parallel_for(int threads, int64_t tasks, const std::function<void(int64_t)>& task);

}  // namespace ringar
