// Runs the tests whose names contain one of the arguments, or all; without those whose names
// contain an argument behind a "-". Each has a deadline: a test that hangs is a failure, and ends
// the program with its name.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "check.h"

namespace ringar::test {

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

bool emulated() {
  const char* value = std::getenv("RINGAR_TEST_EMULATED");
  return value && std::strcmp(value, "1") == 0;
}

void fail(const char* file, int line, const std::string& message) {
  const char* slash = std::strrchr(file, '/');
  throw Failure{std::string(slash ? slash + 1 : file) + ":" + std::to_string(line) + ": " +
                message};
}

}  // namespace ringar::test

namespace {

using ringar::test::Failure;
using ringar::test::limit;
using ringar::test::Skipped;
using ringar::test::Test;

constexpr double kDeadlineSeconds = 120;
const char* running = "";

void on_deadline(int) {
  const char text[] = " did not end before its deadline\n";
  (void)!write(STDERR_FILENO, running, std::strlen(running));
  (void)!write(STDERR_FILENO, text, sizeof text - 1);
  _exit(124);
}

bool is_selected(const char* name, int argc, char** argv) {
  bool has_names = false, is_named = false;
  for (int i = 1; i < argc; ++i) {
    const bool without = argv[i][0] == '-';
    const bool matches = std::strstr(name, argv[i] + without);
    if (without && matches) return false;
    has_names = has_names || !without;
    is_named = is_named || (!without && matches);
  }
  return is_named || !has_names;
}

bool passes(const Test& test) {
  running = test.name;
  alarm(static_cast<unsigned>(limit(kDeadlineSeconds)));
  const auto start = std::chrono::steady_clock::now();
  std::string failure;
  try {
    test.body();
  } catch (const Failure& caught) {
    failure = caught.text;
  } catch (const Skipped& caught) {
    alarm(0);
    std::printf("skipped %s: %s\n", test.name, caught.why.c_str());
    return true;
  }
  alarm(0);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%s %s (%.2f s)\n", failure.empty() ? "ok    " : "FAILED", test.name, took.count());
  if (!failure.empty()) std::printf("    %s\n", failure.c_str());
  std::fflush(stdout);  // or a forked rank would print it again
  return failure.empty();
}

}  // namespace

int main(int argc, char** argv) {
  signal(SIGALRM, on_deadline);
  int run = 0, failed = 0;
  for (const Test& test : ringar::test::tests()) {
    if (!is_selected(test.name, argc, argv)) continue;
    ++run;
    if (!passes(test)) ++failed;
  }
  std::printf("%d tests, %d failed\n", run, failed);
  return failed || run == 0 ? 1 : 0;
}
