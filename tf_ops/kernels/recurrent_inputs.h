// The inputs of the computations of recurrent.cc: their places, and whether they fit together.

#pragma once

#include <string>
#include <vector>

#include "kernels/computation.h"

namespace ringar {

// Where the inputs are, by the list in recurrent.cc.
enum : size_t { kInitial, kRecurrent, kMask, kInputs, kKernel, kBias, kRecurrentBias, kPacked };
constexpr size_t kDStates = 6, kDLast = 7;
constexpr size_t kStates = 3;  // the index of h where there are no inputs

// The arrays of a kind of cell, in multiples of its units.
struct CellArrays {
  const char* name;           // of its op
  int64_t gates;              // columns of its kernels
  int64_t residuals, states;  // what is kept of a step, the vectors of a state
  bool recurrent_bias;        // beside the bias of the inputs
  bool scanned;               // whether the way back may be a scan, with Jacobians
};

// -1 stands for any number.
inline Status expect_rank(const char* name, const char* input, const Dims& received, size_t rank) {
  return received.size() == rank ? Status{} : expect_dims(name, input, received, Dims(rank, -1));
}

struct Expected {
  size_t index;
  const char* name;
  Dims dims;
  bool optional;
};

inline Status expect_all(const char* name, const std::vector<Dims>& in,
                         const std::vector<Expected>& expected) {
  for (const auto& [index, input, dims, optional] : expected)
    if (!optional || in[index] != Dims{0})
      RINGAR_RETURN_IF_ERROR(expect_dims(name, input, in[index], dims));
  return {};
}

// The inputs of all computations, for a sequence of so many examples and steps.
inline Status check_fixed(const char* name, const std::vector<Dims>& in, int64_t batch,
                          int64_t steps, const CellArrays& cell) {
  RINGAR_RETURN_IF_ERROR(expect_rank(name, "recurrent", in[kRecurrent], 2));
  const int64_t units = in[kRecurrent][0];
  return expect_all(name, in,
                    {{kInitial, "h0", {batch, cell.states * units}, false},
                     {kRecurrent, "recurrent", {units, cell.gates * units}, false},
                     {kMask, "mask", {batch, steps}, true}});
}

inline Status check_written(const char* name, const std::vector<Dims>& in, size_t h,
                            const CellArrays& cell) {
  const Dims& states = in[h];
  if (cell.residuals == 0) return {};
  return expect_dims(name, "kept", in[h + 1], {states[0], states[1], cell.residuals * states[2]});
}

inline Status check_projection(const char* name, const std::vector<Dims>& in,
                               const CellArrays& cell) {
  const Dims& x = in[kInputs];
  RINGAR_RETURN_IF_ERROR(expect_rank(name, "inputs", x, 3));
  RINGAR_RETURN_IF_ERROR(check_fixed(name, in, x[0], x[1], cell));
  const int64_t columns = in[kRecurrent][1];
  return expect_all(
      name, in, {{kKernel, "kernel", {x[2], columns}, false}, {kBias, "bias", {columns}, true}});
}

template <const CellArrays& kCell>
inline Status check_forward(const std::vector<Dims>& in) {
  const char* name = kCell.name;
  RINGAR_RETURN_IF_ERROR(check_projection(name, in, kCell));
  return expect_all(name, in, {{kRecurrentBias, "recurrent_bias", {in[kRecurrent][1]}, true}});
}

template <const CellArrays& kCell>
inline Status check_gradient(const std::vector<Dims>& in) {
  const std::string whole_name = std::string(kCell.name) + "Gradient";
  const char* name = whole_name.c_str();
  RINGAR_RETURN_IF_ERROR(check_projection(name, in, kCell));
  const Dims& initial = in[kInitial];
  const Dims states{initial[0], in[kInputs][1], in[kRecurrent][0]};
  RINGAR_RETURN_IF_ERROR(expect_all(name, in,
                                    {{kDStates, "d_states", states, true},
                                     {kDLast, "d_last", initial, true},
                                     {kDLast + 1, "h", states, false}}));
  return check_written(name, in, kDLast + 1, kCell);
}

template <const CellArrays& kCell>
inline Status check_jacobians(const std::vector<Dims>& in) {
  const std::string whole_name = std::string(kCell.name) + "Jacobians";
  const char* name = whole_name.c_str();
  const Dims& h = in[kStates];
  RINGAR_RETURN_IF_ERROR(expect_rank(name, "h", h, 3));
  RINGAR_RETURN_IF_ERROR(check_fixed(name, in, h[0], h[1], kCell));
  RINGAR_RETURN_IF_ERROR(expect_dims(name, "h", h, {h[0], h[1], in[kRecurrent][0]}));
  return check_written(name, in, kStates, kCell);
}

}  // namespace ringar
