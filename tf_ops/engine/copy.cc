#include "engine/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
#include <x86intrin.h>
#endif

#include "engine/way_of_copies.h"

namespace ringar {

// Sanitizers see what memcpy writes, and nothing of assembly.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

namespace {

// Shorter copies are not worth two readings of the clock, nor the start of a string move.
constexpr size_t kLeastMeasured = 8192;

// "Enhanced rep movsb": CPUID leaf 7, EBX bit 9.
bool has_fast_string_move() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 9 & 1u) != 0;
}

const bool fast_string_move = has_fast_string_move();

void string_move(std::byte* to, const std::byte* from, size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

thread_local WayOfCopies way;

}  // namespace

void copy_to_shared(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes < kLeastMeasured) {
    std::memcpy(to, from, bytes);
    return;
  }
  const bool past_caches = way.next_is_past_caches();
  const uint64_t begin = __rdtsc();
  if (past_caches)
    copy_past_caches(to, from, bytes);
  else if (fast_string_move)
    string_move(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
  way.took(past_caches, bytes, __rdtsc() - begin);
}

#else

void copy_to_shared(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

#endif

#if defined(__x86_64__)

void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes) {
  constexpr size_t kLine = 64;
  const size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(to) % kLine);
  std::memcpy(to, from, head);
  size_t at = head;
  for (; bytes - at >= kLine; at += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    // All of a line at once: the processor collects such stores, and writes full lines only.
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to + at, from + at, bytes - at);
  _mm_sfence();  // or a flag that is raised next could be seen before them
}

#else

void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

#endif

}  // namespace ringar
