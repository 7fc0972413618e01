// What the engine's own threads have in common.

#pragma once

namespace ringar {

// To be called first in a thread that mostly waits. Gives it a name of at most 15 characters, and
// short time slices: when what it waits for has come, it is to go on at once, although others
// compute on its core, and who yields comes back soon. Linux before 6.12 takes no notice.
void begin_thread(const char* name);

}  // namespace ringar
