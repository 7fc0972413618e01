// What the engine's own threads have in common.

#pragma once

namespace ringar {

// To be called first in a thread that mostly waits. Gives it a name of at most 15 characters, and
// short time slices: the thread goes on as soon as its wait is over, although others compute on its
// core, and comes back soon after it yields. Linux before 6.12 takes no notice.
void begin_thread(const char* name);

}  // namespace ringar
