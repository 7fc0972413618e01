#include "engine/copy.h"

#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ringar {
namespace {

// Sanitizers see what memcpy writes, and nothing of assembly.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

// "Enhanced rep movsb": CPUID leaf 7, EBX bit 9.
bool has_fast_string_move() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 9 & 1u) != 0;
}

const bool fast_string_move = has_fast_string_move();

void string_move(std::byte* to, const std::byte* from, size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

#else

constexpr bool fast_string_move = false;
void string_move(std::byte*, const std::byte*, size_t) {}

#endif

// A string move takes a while to start.
constexpr size_t kLeastStringMove = 8192;

}  // namespace

void copy_to_shared(std::byte* to, const std::byte* from, size_t bytes) {
  if (fast_string_move && bytes >= kLeastStringMove)
    string_move(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

}  // namespace ringar
