// A collective inside a compiled function: all sizes are known, and outputs are there.

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/request.h"

namespace ringar {

class CompiledRequest : public Request {
 public:
  // Inputs and outputs each begin with a token, before the arrays.
  CompiledRequest(const Spec& spec, void* const* outputs, const void* const* inputs)
      : Request(spec) {
    for (size_t i = 0; i < spec.shapes.size(); ++i) {
      const auto& dims = spec.shapes[i];
      tensors.push_back({static_cast<const std::byte*>(inputs[i + 1]), nullptr,
                         Shape(static_cast<int>(dims.size()),
                               [&](int d) { return dims[static_cast<size_t>(d)]; })});
      outputs_.push_back(static_cast<std::byte*>(outputs[i + 1]));
      if (!rows_may_differ(spec.collective)) tensors.back().output = outputs_.back();
    }
  }

  // Compiled code has fixed the output's size, which is right: the ranks have agreed on the rows
  // (Signature). An output without elements may have no memory; null means failure here.
  std::byte* allocate(size_t index, int64_t) override {
    static std::byte nothing;
    return outputs_[index] ? outputs_[index] : &nothing;
  }
  void complete(const Status&) override {}
  std::string rejection(int ranks) const override {
    return refusal.empty() ? Request::rejection(ranks) : refusal;
  }

  std::string refusal;  // why this rank cannot take part, or ""

 private:
  std::vector<std::byte*> outputs_;
};

}  // namespace ringar
