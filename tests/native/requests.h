// Requests as tests make them: they own their arrays and remember how they ended.

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "engine/request.h"
#include "numbers.h"

namespace ringar::test {

struct OwnedSpec {
  Spec value;
};

enum class Output { kInPlace, kApart, kAllocated };

// Elements of float32: a caller's thread runs the first itself, and leaves the second to the
// engine's.
constexpr size_t kShort = 3, kLong = 270'000;

class TestRequest : private OwnedSpec, public Request {
 public:
  explicit TestRequest(const std::string& spec_text);

  // Adds an array of `dims`. `input` is copied to a place that is `offset` elements off the
  // alignment of vectors. Apart, the output has `output_bytes`.
  void add(const Bytes& input, const std::vector<int64_t>& dims, Output where, size_t output_bytes,
           size_t offset = 0);

  std::byte* allocate(size_t index, int64_t rows) override;
  void complete(const Status& status) override;

  // Waits for complete(), which must come once.
  Status wait();
  // The order in which requests were completed in this process, from 0; -1 before.
  int place() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return place_;
  }

  Bytes output(size_t index) const;
  // Whether the input is as it was given; in place it is not.
  bool input_is_untouched(size_t index) const;

  // Called in the middle of an allgather or alltoall, when it asks for memory.
  std::function<void()> on_allocate;
  // Called by complete(), before wait() returns.
  std::function<void()> on_complete;
  bool refuse_memory = false;

 private:
  struct Array {
    Bytes source;
    Bytes memory;  // of the input, with room before it
    size_t begin;
    Bytes output;
    Output where;
  };

  std::deque<Array> arrays_;
  mutable std::mutex mutex_;
  std::condition_variable completed_;
  int completions_ = 0;
  int place_ = -1;
  Status status_;
};

// The same allreduce on every rank, of elements that are all rank + 1.
std::string allreduce_spec(const std::string& name, const std::string& dtype = "float32");
void add_ones(TestRequest& request, int rank, size_t elements, Output where = Output::kApart);
void expect_sum_of_ranks(const TestRequest& request, int size);

}  // namespace ringar::test
