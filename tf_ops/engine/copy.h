// Copying into memory that another core reads.
//
// Buffers in the shared segment are written by one core and read by others, again and again. A
// store to a line that another core has read must first take the line back from it, and a core has
// few such requests under way: 8 GB/s between two cores that share no cache (AMD EPYC). The string
// move of x86 says in advance that whole lines will be overwritten: 43 GB/s in the same place, and
// no less than other stores where the cores do share a cache. The C library's memcpy uses it too,
// but only on some processors, in some versions and for some sizes. On another AMD EPYC it takes
// lines back no faster than a store does; there copies may go past the caches (way_of_copies.h).
//
// And copying out of it, past the caches (`movnt`): an ordinary store to a line that is in no cache
// reads the line first, and pushes another one out. For arrays from some size on that is wasted
// work; the size depends on the machine (calibration.h).

#pragma once

#include <cstddef>

namespace ringar {

void copy_to_shared(std::byte* to, const std::byte* from, size_t bytes);

// A core that is told afterwards that the bytes are there sees them.
void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace ringar
