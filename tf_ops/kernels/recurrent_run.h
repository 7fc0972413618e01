// Common parts of the computations in recurrent.cc and recurrent_chunks.cc: threads, memory, and
// the way back of a stretch of steps.

#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "kernels/recurrent_cells.h"
#include "kernels/recurrent_inputs.h"
#include "scan/choice.h"
#include "scan/recurrent_chain.h"
#include "scan/scan.h"
#include "scan/workers.h"

namespace ringar {

// The outputs of forward are inputs of the others, which only read them.
template <typename T>
std::vector<T*> written_at(const Inputs& in, size_t index) {
  std::vector<T*> arrays;
  for (; index < in.data.size(); ++index) arrays.push_back(const_cast<T*>(in.at<T>(index)));
  return arrays;
}

inline RecurrentShape shape_of(const Inputs& in) {
  const Dims& inputs = in.dims[kInputs];
  return {inputs[0], inputs[1], inputs[2], in.dims[kRecurrent][0]};
}

// Calls work(first, last, index of the task) for stretches of the batch.
template <typename Work>
void for_examples(const RecurrentShape& shape, int threads, const Work& work) {
  const int64_t tasks = std::min<int64_t>(threads, shape.batch);
  parallel_for(threads, tasks,
               [&](int64_t i) { work(i * shape.batch / tasks, (i + 1) * shape.batch / tasks, i); });
}

// As many of the threads as are worth waking.
inline int threads_for(const Options& options, const RecurrentShape& shape, int gates, int levels) {
  const ChainSize chain{shape.steps, shape.batch, shape.units};
  return worthwhile_threads(recurrent_seconds(chain, gates, levels, 1), options.threads());
}

// Memory that begins at a cache line, as TensorFlow's does: a vector that lies on two would be read
// twice.
template <typename T>
class Memory {
 public:
  explicit Memory(int64_t elements)
      : bytes_((static_cast<size_t>(elements) * sizeof(T) + 63) / 64 * 64),
        data_(bytes_ ? static_cast<T*>(std::aligned_alloc(64, bytes_)) : nullptr, std::free) {
    if (bytes_ && !data_) throw std::bad_alloc();
  }
  T* data() const { return data_.get(); }
  T* zeros() const {
    if (bytes_) std::memset(data_.get(), 0, bytes_);
    return data_.get();
  }

 private:
  size_t bytes_;
  std::unique_ptr<T, decltype(&std::free)> data_;
};

// --- the way back ---

// Each thread has a row of sums of its own.
inline int64_t rows_of_sums(const Options& options, const RecurrentShape& shape) {
  return std::clamp<int64_t>(shape.batch, 1, options.threads());
}

// Adds up the rows in the first one, in their order.
template <typename T>
void add_rows(int64_t rows, int64_t elements, T* sums) {
  for (int64_t row = 1; row < rows; ++row)
    for (int64_t i = 0; i < elements; ++i) sums[i] += sums[row * elements + i];
}

inline Dims d_inputs_dims(const Options& options, const std::vector<Dims>& in) {
  return options.number("without_inputs") ? Dims{0} : in[kInputs];
}

// The first two outputs are d_inputs and d_h0.
template <typename T>
Backward<T> backward_of(const Options& options, const Inputs& in, const Outputs& outputs, T* sums) {
  T* const d_inputs = options.number("without_inputs") ? nullptr : static_cast<T*>(outputs[0]);
  return {in.at<T>(kDStates), in.at<T>(kDLast), d_inputs, static_cast<T*>(outputs[1]), sums};
}

// dL/dh of all steps, by the scan; the last of them is what comes from outside alone.
template <typename Cell, typename T>
std::vector<T> scan_states(const Cell& cell, const ScannedKernels<Cell, T>& kernels,
                           const Backward<T>& back, int levels, int threads) {
  const auto [batch, steps, features, units] = cell.shape;
  std::vector<T> d_h(static_cast<size_t>(batch * steps * units));
  const RecurrentChain<Cell, T> chain(cell, kernels, back.d_states, d_h.data(), back.d_h0);
  const Rows<T> last = chain.results(0);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < units; ++i) {
      T& sum = last.data[b * last.stride + i];
      if (back.d_last) sum += back.d_last[b * units + i];
      if (back.d_states) sum += back.d_states[(b * steps + steps - 1) * units + i];
    }
  scan(chain, levels, threads);
  return d_h;
}

// Of the scan; 0 is the serial kernel.
inline int levels_for(const Options& options, const RecurrentShape& shape, int gates) {
  if (shape.steps == 0 || shape.batch == 0) return 0;
  const int64_t levels = options.number("levels");
  if (levels >= 0) return static_cast<int>(std::min<int64_t>(levels, 62));
  const ChainSize chain{shape.steps, shape.batch, shape.units};
  return choose_recurrent_levels(chain, gates, options.threads());
}

// Of all examples: adds to the rows of sums, and writes the other outputs of `back`.
template <template <typename> class Traits, typename Cell, typename T>
void go_back(const Options& options, const Cell& cell, const T* packed, const Backward<T>& back) {
  constexpr CellArrays kArrays = Traits<T>::kArrays;
  constexpr int kGates = static_cast<int>(kArrays.gates);
  const auto& kernels = Traits<T>::kernels();
  const RecurrentShape& shape = cell.shape;
  const int levels = kArrays.scanned ? levels_for(options, shape, kGates) : 0;
  const int threads = threads_for(options, shape, kGates, levels);
  const int64_t row = kernels.sizes(shape).sums;

  std::vector<T> d_h;
  if constexpr (kArrays.scanned)
    if (levels > 0) d_h = scan_states(cell, kernels, back, levels, threads);
  for_examples(shape, threads, [&](int64_t first, int64_t last, int64_t task) {
    Backward<T> share = back;
    share.sums += task * row;
    if constexpr (kArrays.scanned)
      if (levels > 0) return kernels.gradients(cell, packed, share, d_h.data(), first, last);
    kernels.backward(cell, packed, share, first, last);
  });
}

}  // namespace ringar
