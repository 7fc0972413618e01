#include "requests.h"

#include <atomic>
#include <cstring>

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
  return std::equal(array.source.begin(), array.source.end(),
                    array.memory.begin() + static_cast<std::ptrdiff_t>(array.begin));
}

namespace {

// splitmix64: the library's generators take most of a sanitizer's time.
struct Random {
  uint64_t state;
  uint64_t operator()() {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
};

// A number in [0.5, 2) with either sign, of which a product over some ranks neither vanishes nor
// overflows.
double ordinary(uint64_t raw) {
  const double magnitude = 0.5 + 1.5 * static_cast<double>(raw >> 11) / (uint64_t{1} << 53);
  return raw & 1 ? magnitude : -magnitude;
}

uint64_t bits_of(DataType dtype, double value) {
  uint64_t bits = 0;
  if (dtype == DataType::kFloat64) {
    std::memcpy(&bits, &value, sizeof value);
    return bits;
  }
  const float fp32 = static_cast<float>(value);
  uint32_t word;
  std::memcpy(&word, &fp32, sizeof word);
  if (dtype == DataType::kFloat32) return word;
  if (dtype == DataType::kBfloat16) return word >> 16;
  // [0.5, 2) is normal in float16: the exponent's bias is smaller by 112.
  return (word >> 16 & 0x8000u) | (((word & 0x7fffffffu) >> 13) - (112u << 10));
}

}  // namespace

Bytes random_bytes(DataType dtype, size_t elements, uint64_t seed, int special) {
  Random random{seed * 0x100000001b3u};
  const size_t size = size_of(dtype);
  Bytes bytes(elements * size);
  for (size_t i = 0; i < elements; ++i) {
    const uint64_t raw[2] = {random(), random()};
    std::byte* to = bytes.data() + i * size;
    if (dtype == DataType::kBool) {
      *to = std::byte(raw[0] & 1);
    } else if (!is_floating(dtype) || static_cast<int>(raw[1] % 256) < special) {
      std::memcpy(to, raw, size);
    } else {
      const uint64_t bits = bits_of(dtype, ordinary(raw[0]));
      std::memcpy(to, &bits, size);
    }
  }
  return bytes;
}

Bytes small_numbers(DataType dtype, size_t elements, uint64_t seed) {
  if (!is_floating(dtype)) return random_bytes(dtype, elements, seed);
  Random random{seed * 0x100000001b3u};
  const size_t size = size_of(dtype);
  const double numbers[] = {0.5, 1, -0.5, -1};
  Bytes bytes(elements * size);
  for (size_t i = 0; i < elements; ++i) {
    const double number = numbers[random() % 4];
    const uint64_t bits = bits_of(dtype, number);
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

std::string allreduce_spec(const std::string& name, const std::string& dtype) {
  return "allreduce dtype=" + dtype + " op=sum root=0 set=0 prescale=1 postscale=1 name=" + name;
}

void add_ones(TestRequest& request, int rank, size_t elements, Output where) {
  const std::vector<float> values(elements, static_cast<float>(rank + 1));
  Bytes bytes(elements * sizeof(float));
  if (elements > 0) std::memcpy(bytes.data(), values.data(), bytes.size());
  request.add(bytes, {static_cast<int64_t>(elements)}, where, bytes.size());
}

void expect_sum_of_ranks(const TestRequest& request, int size) {
  const Bytes bytes = request.output(0);
  for (size_t at = 0; at < bytes.size(); at += sizeof(float)) {
    float value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    EXPECT_EQ(value, static_cast<float>(size * (size + 1) / 2));
  }
}

}  // namespace ringar::test
