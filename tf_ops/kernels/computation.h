// A computation of one rank: an op of TensorFlow and a target for XLA, from one definition.
//
// Such an op has any number of inputs and outputs. All are arrays of one dtype, float32 or float64,
// apart from masks (uint8) and indices (int32); an optional input that is absent has no elements.
// All other arguments are in one line of text, the options, as the spec of a collective is:
// "dtype=float32 levels=3 …".

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/status.h"

namespace ringar {

using Dims = std::vector<int64_t>;

class Options {
 public:
  // Words "name=value", separated by spaces.
  explicit Options(std::string_view text);

  // 0 where nothing is said of it.
  int64_t number(const std::string& name) const;
  const std::string& text(const std::string& name) const;
  // How many to use, 1 or more.
  int threads() const;
  // Whether the arrays are of float64, not float32.
  bool is_double() const;

 private:
  std::map<std::string, std::string> values_;
};

struct Inputs {
  std::vector<const void*> data;
  std::vector<Dims> dims;

  // Null where the array has no elements.
  template <typename T>
  const T* at(size_t index) const {
    for (const int64_t dim : dims[index])
      if (dim == 0) return nullptr;
    return static_cast<const T*>(data[index]);
  }
};

using Outputs = std::vector<void*>;

// A computation: a check that the dims of its inputs fit together, which Python can do only where
// it knows them; the dims of its outputs; and the outputs, for either dtype.
struct Computation {
  const char* name;         // "RingarScan"
  const char* target_name;  // "ringar_scan"
  Status (*check)(const std::vector<Dims>& inputs);
  std::vector<Dims> (*shapes)(const Options&, const std::vector<Dims>& inputs);
  void (*run_float)(const Options&, const Inputs&, const Outputs&);
  void (*run_double)(const Options&, const Inputs&, const Outputs&);
  // An output of the dims of an input, which may have its memory where nothing else needs that.
  // Then both begin at one address.
  struct InPlace {
    int input = -1, output = -1;
  } in_place = {};
};

// An error unless an input has the dims that it must have.
Status expect_dims(const char* computation, const char* input, const Dims& received,
                   const Dims& expected);

void register_computations();

const Computation& scan_computation();
const Computation& scan_reduce_computation();
const Computation& simple_rnn_computation();
const Computation& simple_rnn_gradient_computation();
const Computation& simple_rnn_jacobians_computation();
const Computation& gru_computation();
const Computation& gru_gradient_computation();
const Computation& gru_jacobians_computation();
const Computation& lstm_computation();
const Computation& lstm_gradient_computation();
const Computation& simple_rnn_pack_computation();
const Computation& gru_pack_computation();
const Computation& lstm_pack_computation();
const Computation& simple_rnn_chunk_gradient_computation();
const Computation& gru_chunk_gradient_computation();
const Computation& lstm_chunk_gradient_computation();
const Computation& simple_rnn_weights_computation();
const Computation& gru_weights_computation();
const Computation& lstm_weights_computation();
const Computation& sparse_multiply_computation();
const Computation& sparse_gradient_computation();

}  // namespace ringar
