// A small test harness: TEST(name) { EXPECT(...); }, and a main (main.cc) that runs them all.
//
// A failed expectation throws Failure; ranks that are threads or processes carry it to the test
// that started them (ranks.h).

#pragma once

#include <chrono>
#include <cstddef>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace ringar::test {

struct Failure {
  std::string text;
};

struct Test {
  const char* name;
  void (*body)();
};

std::vector<Test>& tests();

struct Registered {
  Registered(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

// For what an emulator of another processor (qemu-user) does not do as a kernel would.
struct Skipped {
  std::string why;
};
// Whether the tests run in one; RINGAR_TEST_EMULATED=1 says so.
bool emulated();
inline void skip_if_emulated(const char* why) {
  if (emulated()) throw Skipped{why};
}
// A limit of so many seconds on a machine, which an emulator takes longer to reach.
inline double limit(double seconds) {
  return emulated() ? 10 * seconds : seconds;
}

// Tests do less under AddressSanitizer and ThreadSanitizer, which make them several times slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr size_t kMiB = size_t{1} << 20;

inline void nap(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

[[noreturn]] void fail(const char* file, int line, const std::string& message);

template <typename T>
std::string show(const T& value) {
  std::ostringstream text;
  if constexpr (std::is_enum_v<T>)
    text << static_cast<long long>(value);
  else
    text << value;
  return text.str();
}

template <typename A, typename B>
void expect_equal(const A& received, const B& expected, const char* expression, const char* file,
                  int line) {
  if (received == expected) return;
  fail(file, line,
       std::string(expression) + ": expected " + show(expected) + ", received " + show(received));
}

inline void expect_contains(const std::string& text, const std::string& part, const char* file,
                            int line) {
  if (text.find(part) == std::string::npos)
    fail(file, line, "expected \"" + part + "\" in: " + text);
}

}  // namespace ringar::test

#define TEST(name)                                                               \
  static void test_##name();                                                     \
  static const ::ringar::test::Registered registered_##name{#name, test_##name}; \
  static void test_##name()

#define EXPECT(condition)                                                               \
  do {                                                                                  \
    if (!(condition)) ::ringar::test::fail(__FILE__, __LINE__, "expected " #condition); \
  } while (false)

// The received value comes first, as in `what == wanted`.
#define EXPECT_EQ(received, expected) \
  ::ringar::test::expect_equal(received, expected, #received, __FILE__, __LINE__)

#define EXPECT_CONTAINS(text, part) ::ringar::test::expect_contains(text, part, __FILE__, __LINE__)

#define EXPECT_OK(expression)                                                                \
  do {                                                                                       \
    const ::ringar::Status status_ = (expression);                                           \
    if (!status_.ok())                                                                       \
      ::ringar::test::fail(__FILE__, __LINE__, #expression " failed: " + status_.message()); \
  } while (false)
