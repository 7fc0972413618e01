#include "requests.h"

#include <atomic>

#include "check.h"

namespace ringar::test {

namespace {
std::atomic<int> completed_requests{0};
}

TestRequest::TestRequest(const std::string& spec_text) : Request(OwnedSpec::value) {
  EXPECT_OK(Spec::parse(spec_text, &(OwnedSpec::value)));
}

void TestRequest::add(const Bytes& input, const std::vector<int64_t>& dims, Output where,
                      size_t output_bytes, size_t offset) {
  const size_t begin = offset * element_size();
  Bytes memory(begin + input.size());
  std::copy(input.begin(), input.end(), memory.begin() + static_cast<std::ptrdiff_t>(begin));
  arrays_.push_back({input, std::move(memory), begin, {}, where});
  Array& array = arrays_.back();
  Tensor& tensor = tensors.emplace_back();
  tensor.shape =
      Shape(static_cast<int>(dims.size()), [&](int i) { return dims[static_cast<size_t>(i)]; });
  EXPECT_EQ(static_cast<size_t>(tensor.shape.elements()) * element_size(), input.size());
  // data() + 0 would be null for no bytes, which is a case of its own in TensorFlow too.
  tensor.input = array.memory.data() + begin;
  if (where == Output::kInPlace) tensor.output = array.memory.data() + begin;
  if (where != Output::kApart) return;
  array.output.resize(output_bytes, std::byte{0xa5});
  tensor.output = array.output.data();
}

std::byte* TestRequest::allocate(size_t index, int64_t rows) {
  if (on_allocate) on_allocate();
  if (refuse_memory) return nullptr;
  Array& array = arrays_[index];
  EXPECT(array.where == Output::kAllocated);
  array.output.resize(static_cast<size_t>(rows) * row_bytes(index), std::byte{0xa5});
  static std::byte nothing;
  return array.output.empty() ? &nothing : array.output.data();
}

void TestRequest::complete(const Status& status) {
  // Under the lock to the end: whoever waits may delete this.
  const std::lock_guard<std::mutex> lock(mutex_);
  if (on_complete) on_complete();
  status_ = status;
  ++completions_;
  place_ = completed_requests.fetch_add(1);
  completed_.notify_all();
}

Status TestRequest::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  completed_.wait(lock, [this] { return completions_ > 0; });
  EXPECT_EQ(completions_, 1);
  return status_;
}

Bytes TestRequest::output(size_t index) const {
  const Array& array = arrays_[index];
  if (array.where != Output::kInPlace) return array.output;
  return Bytes(array.memory.begin() + static_cast<std::ptrdiff_t>(array.begin), array.memory.end());
}

bool TestRequest::input_is_untouched(size_t index) const {
  const Array& array = arrays_[index];
  return same_bytes(array.source.data(), array.memory.data() + array.begin, array.source.size());
}

std::string allreduce_spec(const std::string& name, const std::string& dtype) {
  return "allreduce dtype=" + dtype + " op=sum root=0 set=0 prescale=1 postscale=1 name=" + name;
}

void add_ones(TestRequest& request, int rank, size_t elements, Output where) {
  const Bytes bytes = copies_of(static_cast<float>(rank + 1), elements);
  request.add(bytes, {static_cast<int64_t>(elements)}, where, bytes.size());
}

void expect_sum_of_ranks(const TestRequest& request, int size) {
  expect_copies_of(static_cast<float>(size * (size + 1) / 2), request.output(0));
}

}  // namespace ringar::test
