// The engine's work over time, as Chrome trace events: opens in Perfetto and chrome://tracing.
//
// Each rank writes a file of its own; ringar/job/timeline.py merges them. Times are those of
// CLOCK_MONOTONIC, which all processes of a host share, in microseconds. The file is valid JSON
// after every event: each event is written over the closing bracket, together with a new one.
//
// Off, the timeline costs one relaxed load per collective.

#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/status.h"

namespace ringar {

int64_t monotonic_ns();

// One span of a collective: copying, reducing, or waiting for a rank or for the link.
struct Span {
  enum Kind : uint8_t { kCopy, kReduce, kWait };
  Kind kind;
  int peer;  // the rank waited for, -1 for transfers
  int64_t begin, end;
};

// The spans that a communicator notes while it runs one collective.
class Trace {
 public:
  void clear() { spans_.clear(); }
  void add(Span::Kind kind, int64_t begin, int peer = -1);
  const std::vector<Span>& spans() const { return spans_; }

 private:
  std::vector<Span> spans_;
};

class Timeline {
 public:
  static Timeline& instance();

  bool on() const { return on_.load(std::memory_order_relaxed); }
  Status start(const std::string& path, int rank);
  void stop();

  // A collective from its submission to its end, with its spans.
  void collective(const Request& request, const std::string& title, int64_t begin,
                  const Trace& trace);
  // A message from its submission to its end, which was in reach at `begin`.
  void message(const Request& request, const std::string& title, int64_t begin);

 private:
  void write(const std::string& event);
  void label(const char* kind, int row, const std::string& name);
  // Collectives of a process set follow each other, and have a row in common.
  int row_of(int process_set);
  void beside(const char* kind, int row, const std::string& name, int64_t begin, int64_t end,
              const std::string& args = "");
  void span(const std::string& name, int row, int64_t begin, int64_t end, const std::string& args);

  std::atomic<bool> on_{false};
  std::mutex mutex_;
  int file_ = -1;
  int rank_ = 0;
  int64_t end_ = 0;  // where the closing bracket is
  uint64_t events_ = 0;
  std::set<int> rows_;  // that have a name
};

}  // namespace ringar
