// The mode in which the engine computes with floats, whatever mode the calling thread has.
//
// TensorFlow lets its threads flush denormals to zero; the engine's own thread does not. A sum must
// not depend on the thread that computes it.

#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace ringar {

class DefaultRounding {
 public:
#if defined(__x86_64__)
  DefaultRounding() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DefaultRounding() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  DefaultRounding() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    if (saved_ != 0) set(0);
  }
  ~DefaultRounding() {
    if (saved_ != 0) set(saved_);
  }

 private:
  static void set(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }

  uint64_t saved_;
#endif
};

}  // namespace ringar
