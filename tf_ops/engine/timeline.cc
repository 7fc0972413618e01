#include "engine/timeline.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace ringar {
namespace {

// A row per process set of the rank, and below it one for what waits; messages are beside the
// first.
constexpr int kFirstRow = 0;

// Blocks of a large array are thousands: their sums are always there, themselves up to this many.
constexpr size_t kMostSpans = 256;

std::string quoted(const std::string& text) {
  std::string s = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') s += '\\';
    s += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return s + "\"";
}

std::string microseconds(int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(ns / 1000),
                static_cast<long long>(ns % 1000));
  return text;
}

std::string members(const Request& request) {
  constexpr size_t kMost = 32;
  std::string s = "[";
  for (size_t i = 0; i < request.tensors.size() && i < kMost; ++i) {
    const Shape& shape = request.tensors[i].shape;
    std::string dims;
    for (int d = 0; d < shape.ndims; ++d) dims += (d ? "," : "") + std::to_string(shape.dims[d]);
    s += (i ? "," : "") + quoted("[" + dims + "]");
  }
  if (request.tensors.size() > kMost)
    s += "," + quoted("and " + std::to_string(request.tensors.size() - kMost) + " more");
  return s + "]";
}

std::string totals(const Trace& trace) {
  int64_t copying = 0, reducing = 0, waiting = 0;
  for (const Span& phase : trace.spans())
    (phase.kind == Span::kCopy     ? copying
     : phase.kind == Span::kReduce ? reducing
                                   : waiting) += phase.end - phase.begin;
  return "\"copying_us\":" + microseconds(copying) + ",\"reducing_us\":" + microseconds(reducing) +
         ",\"waiting_us\":" + microseconds(waiting);
}

std::string name_of(const Span& span) {
  switch (span.kind) {
    case Span::kCopy:
      return "copy";
    case Span::kReduce:
      return "reduce";
    case Span::kWait:
      break;
  }
  return span.peer < 0 ? "wait for transfers" : "wait for rank " + std::to_string(span.peer);
}

}  // namespace

int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

void Trace::add(Span::Kind kind, int64_t begin, int peer) {
  spans_.push_back({kind, peer, begin, monotonic_ns()});
}

Timeline& Timeline::instance() {
  static Timeline timeline;
  return timeline;
}

Status Timeline::start(const std::string& path, int rank) {
  stop();
  const std::lock_guard<std::mutex> lock(mutex_);
  file_ = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (file_ < 0)
    return {RINGAR_UNSUPPORTED, "rank " + std::to_string(rank) + " | cannot write the timeline " +
                                    path + ": " + std::strerror(errno)};
  rank_ = rank;
  events_ = 0;
  end_ = 1;
  if (pwrite(file_, "[\n]\n", 4, 0) != 4) return {RINGAR_UNSUPPORTED, "cannot write " + path};
  rows_.clear();
  label("process_name", kFirstRow, "rank " + std::to_string(rank));
  row_of(kFirstRow);
  write("{\"ph\":\"M\",\"pid\":" + std::to_string(rank) +
        ",\"tid\":0,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":" +
        std::to_string(rank) + "}}");
  on_.store(true);
  return {};
}

void Timeline::stop() {
  on_.store(false);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file_ >= 0) close(file_);
  file_ = -1;
}

void Timeline::label(const char* kind, int row, const std::string& name) {
  write("{\"ph\":\"M\",\"pid\":" + std::to_string(rank_) + ",\"tid\":" + std::to_string(row) +
        ",\"name\":\"" + kind + "\",\"args\":{\"name\":" + quoted(name) + "}}");
}

int Timeline::row_of(int process_set) {
  if (rows_.insert(process_set).second)
    label("thread_name", process_set,
          process_set == kFirstRow ? "collectives"
                                   : "collectives of process set " + std::to_string(process_set));
  return process_set;
}

// Called with the lock held.
void Timeline::write(const std::string& event) {
  if (file_ < 0) return;
  const std::string text = (events_++ ? ",\n" : "\n") + event + "\n]\n";
  if (pwrite(file_, text.data(), text.size(), end_) == static_cast<ssize_t>(text.size()))
    end_ += static_cast<int64_t>(text.size()) - 3;
}

void Timeline::span(const std::string& name, int row, int64_t begin, int64_t end,
                    const std::string& args) {
  write("{\"ph\":\"X\",\"pid\":" + std::to_string(rank_) + ",\"tid\":" + std::to_string(row) +
        ",\"ts\":" + microseconds(begin) + ",\"dur\":" + microseconds(end - begin) +
        ",\"name\":" + quoted(name) + (args.empty() ? "" : ",\"args\":{" + args + "}") + "}");
}

// Requests wait side by side, messages travel side by side, and spans of one row must not cross:
// these are asynchronous events.
void Timeline::beside(const char* kind, int row, const std::string& name, int64_t begin,
                      int64_t end, const std::string& args) {
  const std::string rest = ",\"cat\":" + quoted(kind) + ",\"id2\":{\"local\":\"" +
                           std::to_string(events_) + "\"},\"pid\":" + std::to_string(rank_) +
                           ",\"tid\":" + std::to_string(row) + ",\"name\":" + quoted(name);
  write("{\"ph\":\"b\",\"ts\":" + microseconds(begin) + rest +
        (args.empty() ? "" : ",\"args\":{" + args + "}") + "}");
  write("{\"ph\":\"e\",\"ts\":" + microseconds(end) + rest + "}");
}

void Timeline::collective(const Request& request, const std::string& title, int64_t begin,
                          const Trace& trace) {
  const int64_t end = monotonic_ns();
  const std::lock_guard<std::mutex> lock(mutex_);
  const int row = row_of(request.spec.process_set);
  if (request.submitted_ns > 0 && request.submitted_ns < begin)
    beside("queue", row, "queued: " + title, request.submitted_ns, begin);
  span(title, row, begin, end,
       "\"bytes\":" + std::to_string(request.input_bytes()) +
           ",\"dtype\":" + quoted(std::string(ringar::name_of(request.spec.dtype))) +
           ",\"tensors\":" + std::to_string(request.tensors.size()) +
           ",\"members\":" + members(request) +
           ",\"process_set\":" + std::to_string(request.spec.process_set) + "," + totals(trace));
  size_t count = 0;
  for (const Span& phase : trace.spans())
    if (count++ < kMostSpans) span(name_of(phase), row, phase.begin, phase.end, "");
}

void Timeline::message(const Request& request, const std::string& title, int64_t begin) {
  const int64_t end = monotonic_ns();
  const int64_t submitted = request.submitted_ns > 0 ? request.submitted_ns : begin;
  const std::lock_guard<std::mutex> lock(mutex_);
  beside("message", kFirstRow, title, submitted, end,
         "\"bytes\":" + std::to_string(request.input_bytes()) +
             ",\"dtype\":" + quoted(std::string(ringar::name_of(request.spec.dtype))) +
             ",\"members\":" + members(request) +
             ",\"process_set\":" + std::to_string(request.spec.process_set) +
             ",\"waiting_us\":" + microseconds(begin - submitted));
}

}  // namespace ringar
