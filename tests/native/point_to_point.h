// What tests of messages have in common: a send and a receive, and the places where two ranks are.

#pragma once

#include <string>
#include <vector>

#include "check.h"
#include "ranks.h"
#include "requests.h"

namespace ringar::test {

using Dims = std::vector<int64_t>;

struct Envelope {
  std::string name;
  std::string dtype = "float32";
  int set = 0;
  int tag = 0;

  std::string spec(const char* direction, int peer) const {
    return std::string(direction) + " dtype=" + dtype + " root=" + std::to_string(peer) +
           " set=" + std::to_string(set) + " tag=" + std::to_string(tag) + " name=" + name;
  }
};

inline size_t elements(const Dims& dims) {
  size_t n = 1;
  for (int64_t dim : dims) n *= static_cast<size_t>(dim);
  return n;
}

class Send : public TestRequest {
 public:
  explicit Send(int to, const Envelope& envelope = {}) : TestRequest(envelope.spec("send", to)) {}
  Send& with(const Dims& dims, uint64_t seed = 0) {
    const Bytes bytes = random_bytes(spec.dtype, elements(dims), seed);
    add(bytes, dims, Output::kApart, 0);
    tensors.back().output = nullptr;
    return *this;
  }
};

class Recv : public TestRequest {
 public:
  explicit Recv(int from, const Envelope& envelope = {})
      : TestRequest(envelope.spec("recv", from)) {}
  Recv& of(const Dims& dims) {
    tensors.push_back({nullptr, nullptr, Shape(static_cast<int>(dims.size()), [&](int i) {
                         return dims[static_cast<size_t>(i)];
                       })});
    received_.resize(tensors.size());
    return *this;
  }
  std::byte* allocate(size_t index, int64_t rows) override {
    if (refuse_memory) return nullptr;
    const Shape& shape = tensors[index].shape;
    EXPECT_EQ(rows, shape.rows());
    received_[index].resize(static_cast<size_t>(shape.elements()) * element_size());
    static std::byte nothing;
    return received_[index].empty() ? &nothing : received_[index].data();
  }
  void expect(const Dims& dims, uint64_t seed = 0, size_t index = 0) const {
    EXPECT(same_bytes(received_[index], random_bytes(spec.dtype, elements(dims), seed)));
  }

 private:
  std::vector<Bytes> received_;
};

inline const Hosts kOneHost{{2}}, kTwoHosts{{1, 1}};

// Two ranks in either place, as processes.
inline void on_pairs(const Body& body) {
  for (const Hosts& hosts : {kOneHost, kTwoHosts}) on_processes(hosts, body);
}

}  // namespace ringar::test
