// What the outside did wrong travels as a Status; what we did wrong stops the program.
//
// A rank that died, a peer that never came or a bad argument is a Status: it reaches the user as an
// exception. A broken invariant of our own is RINGAR_CHECK: it prints its place and aborts, since
// going on could train on wrong numbers.

#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "include/ringar.h"

namespace ringar {

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ringar_code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == RINGAR_OK; }
  ringar_code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  ringar_code code_ = RINGAR_OK;
  std::string message_;
};

inline std::string text(int64_t number) {
  return std::to_string(number);
}

// How many bytes of a text fit into `limit` without cutting a character of UTF-8 in two: a message
// with half of one becomes an error of its own in TensorFlow.
inline size_t fitting(const std::string& text, size_t limit) {
  if (text.size() <= limit) return text.size();
  while (limit > 0 && (text[limit] & 0xc0) == 0x80) --limit;
  return limit;
}

// Copies as much of a text as fits, and a terminating zero.
template <size_t N>
void copy_text(char (&to)[N], const std::string& from) {
  const size_t n = fitting(from, N - 1);
  std::memcpy(to, from.data(), n);
  to[n] = '\0';
}

inline Status no_memory_for(size_t bytes) {
  return {RINGAR_OUT_OF_MEMORY,
          "expected memory for an output of " + std::to_string(bytes) + " bytes, received none"};
}

#define RINGAR_RETURN_IF_ERROR(expression)   \
  do {                                       \
    ::ringar::Status status_ = (expression); \
    if (!status_.ok()) return status_;       \
  } while (false)

#define RINGAR_CHECK(condition)                                                            \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      std::fprintf(stderr, "ringar | broken invariant at %s:%d: %s\n", __FILE__, __LINE__, \
                   #condition);                                                            \
      std::abort();                                                                        \
    }                                                                                      \
  } while (false)

}  // namespace ringar
