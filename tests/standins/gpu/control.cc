// What tests control the library with, but for what belongs to one of its parts.

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "communicator.h"
#include "driver.h"
#include "memory.h"
#include "per_thread.h"
#include "standin.h"

namespace standin {
namespace {

#define STANDIN_NAME(name, exported, arguments) #exported,
const char* const kNames[] = {RINGAR_CUDA_FUNCTIONS(STANDIN_NAME)
                                  RINGAR_NCCL_FUNCTIONS(STANDIN_NAME)};

std::string plain(const std::string& call) {
  const size_t end = call.size();
  return end > 3 && call.compare(end - 3, 3, "_v2") == 0 ? call.substr(0, end - 3) : call;
}

double number_of(const char* variable, double otherwise) {
  const char* const value = std::getenv(variable);
  return value ? std::atof(value) : otherwise;
}

// Calls that are to fail: how many come before, and that one.
using Failures = std::map<std::string, int>;

Failures failures_of(const char* variable) {
  Failures failures;
  const char* const value = std::getenv(variable);
  std::string rest = value ? value : "";
  while (!rest.empty()) {
    const size_t comma = rest.find(','), colon = rest.find(':');
    failures[plain(rest.substr(0, colon))] =
        colon < comma ? std::atoi(rest.c_str() + colon + 1) : 1;
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
  }
  return failures;
}

struct Control {
  std::mutex mutex;
  std::map<std::string, int> calls;
  Failures now = failures_of("STANDIN_FAIL"), later = failures_of("STANDIN_FAIL_LATER"), never;
  std::map<std::string, std::pair<int, std::string>> codes;
  std::atomic<bool> is_released{false};
  std::atomic<double> lateness{0};
  std::atomic<int> gpu{-1};
  std::vector<std::string> misuses;
  std::atomic<int> devices{static_cast<int>(number_of("STANDIN_DEVICES", 1))};
  std::atomic<int> nccl_version{22703};
  std::atomic<double> timeout{number_of("STANDIN_TIMEOUT", 60)};
};

// Never destroyed: threads may still use it when the process ends.
Control& control() {
  static Control& instance = *new Control;
  return instance;
}

bool is_the_one(Failures* failures, const std::string& call) {
  const auto entry = failures->find(call);
  if (entry == failures->end() || --entry->second > 0) return false;
  failures->erase(entry);
  return true;
}

void set(Failures Control::* field, const char* function, const char* call, int nth) {
  static const std::set<std::string>& calls = *[] {
    auto* const names = new std::set<std::string>;
    for (const char* name : kNames) names->insert(plain(name));
    return names;
  }();
  if (!calls.count(plain(call))) misuse(function, text("there is no call %s", call));
  const std::lock_guard<std::mutex> lock(control().mutex);
  if (nth > 0)
    (control().*field)[plain(call)] = nth;
  else
    (control().*field).erase(plain(call));
}

}  // namespace

bool fails(const char* call) {
  bool fails = false, hangs = false;
  {
    const std::lock_guard<std::mutex> lock(control().mutex);
    ++control().calls[plain(call)];
    fails = is_the_one(&control().now, plain(call));
    hangs = is_the_one(&control().never, plain(call));
  }
  while (hangs && !control().is_released) pause();
  return fails;
}

int code_of_failure(const char* call, int otherwise) {
  std::pair<int, std::string> failure{otherwise, ""};
  {
    const std::lock_guard<std::mutex> lock(control().mutex);
    const auto entry = control().codes.find(plain(call));
    if (entry != control().codes.end()) failure = entry->second;
  }
  if (!failure.second.empty()) note_error(failure.second);
  return failure.first;
}

bool fails_later(const char* call) {
  const std::lock_guard<std::mutex> lock(control().mutex);
  return is_the_one(&control().later, plain(call));
}

void misuse(const std::string& call, const std::string& text) {
  const std::string line = call + ": " + text;
  std::fprintf(stderr, "GPU stand-in, process %d: misuse: %s\n", getpid(), line.c_str());
  const std::lock_guard<std::mutex> lock(control().mutex);
  control().misuses.push_back(line);
}

std::string text(const char* format, ...) {
  char text[1000];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

const char* lend(const std::string& text) {
  static auto& copy = *new PerThread<std::string>;
  *copy = text;
  return copy->c_str();
}

void pause() {
  const timespec moment = {0, 50'000};
  nanosleep(&moment, nullptr);
}

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double timeout() {
  return control().timeout;
}
int devices() {
  return std::min(control().devices.load(), kMostDevices);
}
int nccl_version() {
  return control().nccl_version;
}
double lateness() {
  return control().lateness;
}

Place place_of(int device) {
  const int first = control().gpu;
  if (first >= 0) return {first + device, true};
  const bool are_several = devices() > 1;
  return {are_several ? device : getpid(), are_several};
}

void stay() {
  static const bool once = [] {
    Dl_info self;
    return dladdr(reinterpret_cast<void*>(&stay), &self) &&
           dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  }();
  (void)once;
}

}  // namespace standin

using standin::control;

extern "C" {

void standin_fail(const char* call, int nth) {
  standin::set(&standin::Control::now, __func__, call, nth);
}

void standin_fail_with(const char* call, int nth, int code, const char* text) {
  standin::set(&standin::Control::now, __func__, call, nth);
  const std::lock_guard<std::mutex> lock(control().mutex);
  control().codes[standin::plain(call)] = {code, text};
}

void standin_hang(const char* call, int nth) {
  control().is_released = false;
  standin::set(&standin::Control::never, __func__, call, nth);
}

void standin_release() {
  control().is_released = true;
}

void standin_fail_later(const char* call, int nth) {
  standin::set(&standin::Control::later, __func__, call, nth);
}

int standin_calls(const char* call) {
  const std::lock_guard<std::mutex> lock(control().mutex);
  const auto entry = control().calls.find(standin::plain(call));
  return entry == control().calls.end() ? 0 : entry->second;
}

const char* standin_open() {
  const standin::Memory& memory = standin::memory();
  const size_t numbers[] = {standin::retained_contexts(),
                            standin::streams().count(-1),
                            standin::events().count(-1),
                            memory.bytes(standin::Memory::kDevice, -1),
                            memory.bytes(standin::Memory::kHost, -1),
                            standin::communicators().count(-1),
                            standin::open_redops(),
                            standin::open_groups()};
  size_t sum = 0;
  for (size_t number : numbers) sum += number;
  if (sum == 0) return "";
  return standin::lend(
      standin::text("contexts=%zu streams=%zu events=%zu device_bytes=%zu "
                    "host_bytes=%zu communicators=%zu redops=%zu groups=%zu",
                    numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5],
                    numbers[6], numbers[7]));
}

const char* standin_misuse() {
  standin::memory().look_after();
  std::string lines;
  const std::lock_guard<std::mutex> lock(control().mutex);
  for (const std::string& line : control().misuses) lines += (lines.empty() ? "" : "\n") + line;
  return standin::lend(lines);
}

void standin_forget() {
  standin::memory().look_after();
  const std::lock_guard<std::mutex> lock(control().mutex);
  control().misuses.clear();
  control().calls.clear();
  control().now.clear();
  control().later.clear();
  control().never.clear();
  control().codes.clear();
}

void standin_pretend_version(int nccl_version) {
  control().nccl_version = nccl_version;
}
void standin_lateness(double seconds) {
  control().lateness = seconds;
}
void standin_place(int gpu) {
  control().gpu = gpu;
}
void standin_devices(int count) {
  control().devices = count;
}
void standin_timeout(double seconds) {
  control().timeout = seconds;
}

}  // extern "C"
