// SimpleRNN, GRU and LSTM in chunks of steps, of which all but the weights are inputs and outputs:
// kernels are packed once for all chunks, and the gradients of the weights go from chunk to chunk
// as sums that each adds to. recurrent.cc has the whole sequences, and a chunk's way forward, which
// takes what is packed, too.
//
//   Ringar…Pack             kernel, recurrent                           -> packed
//   Ringar…ChunkGradient    the inputs of Ringar…Gradient, with packed and sums before h
//                                                                       -> d_inputs, d_h0, sums
//   Ringar…Weights          sums, kernel, recurrent, bias
//                                           -> d_kernel, d_recurrent, d_bias, d_recurrent_bias
//
// `packed` and `sums` are as the products of this processor's instruction set read and leave them:
// no other process may get them. sums may be absent, before the first chunk; an output may have its
// memory. Of `Weights` the other inputs count by their shapes. Options: `back` (1: packed for the
// way back), else those of recurrent.cc.

#include <cstring>
#include <string>
#include <vector>

#include "kernels/recurrent_cells.h"
#include "kernels/recurrent_inputs.h"
#include "kernels/recurrent_run.h"

namespace ringar {
namespace {

constexpr size_t kBackPacked = kDLast + 1, kSums = kDLast + 2, kChunkStates = kDLast + 3;

template <template <typename> class Traits>
PackedSizes sizes_of(const Options& options, const RecurrentShape& shape) {
  return options.is_double() ? Traits<double>::kernels().sizes(shape)
                             : Traits<float>::kernels().sizes(shape);
}

// --- packing ---

enum : size_t { kPackedKernel, kPackedRecurrent };

RecurrentShape shape_of_weights(const Dims& kernel, const Dims& recurrent) {
  return {0, 0, kernel[0], recurrent[0]};
}

Status check_weights(const std::string& name, const CellArrays& cell, const Dims& kernel,
                     const Dims& recurrent) {
  RINGAR_RETURN_IF_ERROR(expect_rank(name.c_str(), "recurrent", recurrent, 2));
  RINGAR_RETURN_IF_ERROR(expect_rank(name.c_str(), "kernel", kernel, 2));
  const int64_t units = recurrent[0], columns = cell.gates * units;
  RINGAR_RETURN_IF_ERROR(expect_dims(name.c_str(), "recurrent", recurrent, {units, columns}));
  return expect_dims(name.c_str(), "kernel", kernel, {kernel[0], columns});
}

template <const CellArrays& kCell>
Status check_pack(const std::vector<Dims>& in) {
  return check_weights(std::string(kCell.name) + "Pack", kCell, in[kPackedKernel],
                       in[kPackedRecurrent]);
}

template <template <typename> class Traits>
std::vector<Dims> pack_shapes(const Options& options, const std::vector<Dims>& in) {
  const PackedSizes sizes =
      sizes_of<Traits>(options, shape_of_weights(in[kPackedKernel], in[kPackedRecurrent]));
  return {{options.number("back") ? sizes.back : sizes.forth}};
}

template <template <typename> class Traits, typename T>
void pack(const Options& options, const Inputs& in, const Outputs& outputs) {
  const auto& kernels = Traits<T>::kernels();
  const RecurrentShape shape = shape_of_weights(in.dims[kPackedKernel], in.dims[kPackedRecurrent]);
  (options.number("back") ? kernels.pack_back : kernels.pack)(
      shape, in.at<T>(kPackedKernel), in.at<T>(kPackedRecurrent), static_cast<T*>(outputs[0]));
}

// --- the way back of a chunk ---

template <const CellArrays& kCell>
Status check_chunk_gradient(const std::vector<Dims>& in) {
  std::vector<Dims> dims = in;
  const auto packed = dims.begin() + static_cast<ptrdiff_t>(kBackPacked);
  dims.erase(packed, packed + 2);
  RINGAR_RETURN_IF_ERROR(check_gradient<kCell>(dims));
  return expect_rank(kCell.name, "packed", in[kBackPacked], 1);
}

template <template <typename> class Traits>
std::vector<Dims> chunk_gradient_shapes(const Options& options, const std::vector<Dims>& in) {
  const RecurrentShape shape{in[kInputs][0], in[kInputs][1], in[kInputs][2], in[kRecurrent][0]};
  return {d_inputs_dims(options, in),
          in[kInitial],
          {rows_of_sums(options, shape), sizes_of<Traits>(options, shape).sums}};
}

template <template <typename> class Traits, typename T>
void chunk_gradient(const Options& options, const Inputs& in, const Outputs& outputs) {
  const auto cell = Traits<T>::cell(options, shape_of(in), in, projection<T>(in), nullptr,
                                    written_at<T>(in, kChunkStates));
  const PackedSizes sizes = Traits<T>::kernels().sizes(cell.shape);
  const T *packed = in.at<T>(kBackPacked), *before = in.at<T>(kSums);
  T* const sums = static_cast<T*>(outputs[2]);
  const int64_t elements = rows_of_sums(options, cell.shape) * sizes.sums;
  RINGAR_CHECK(in.dims[kBackPacked] == Dims{sizes.back});
  RINGAR_CHECK(!before || in.dims[kSums] == Dims({elements / sizes.sums, sizes.sums}));
  const size_t bytes = static_cast<size_t>(elements) * sizeof(T);
  if (!before)
    std::memset(sums, 0, bytes);
  else if (before != sums)
    std::memcpy(sums, before, bytes);
  go_back<Traits>(options, cell, packed, backward_of<T>(options, in, outputs, sums));
}

// --- the gradients of the weights ---

enum : size_t { kWholeSums, kWholeKernel, kWholeRecurrent, kWholeBias };

template <const CellArrays& kCell>
Status check_sums(const std::vector<Dims>& in) {
  const std::string name = std::string(kCell.name) + "Weights";
  RINGAR_RETURN_IF_ERROR(check_weights(name, kCell, in[kWholeKernel], in[kWholeRecurrent]));
  return expect_rank(name.c_str(), "sums", in[kWholeSums], 2);
}

template <const CellArrays& kCell>
std::vector<Dims> weights_shapes(const Options&, const std::vector<Dims>& in) {
  const Dims& bias = in[kWholeBias];
  return {in[kWholeKernel], in[kWholeRecurrent], bias, kCell.recurrent_bias ? bias : Dims{0}};
}

template <template <typename> class Traits, typename T>
void weights(const Options&, const Inputs& in, const Outputs& outputs) {
  const auto& kernels = Traits<T>::kernels();
  const RecurrentShape shape = shape_of_weights(in.dims[kWholeKernel], in.dims[kWholeRecurrent]);
  const T* sums = in.at<T>(kWholeSums);
  const int64_t rows = in.dims[kWholeSums][0], elements = in.dims[kWholeSums][1];
  RINGAR_CHECK(elements == kernels.sizes(shape).sums);
  const Memory<T> added(rows > 1 ? rows * elements : 0);
  if (rows > 1) {
    std::memcpy(added.data(), sums, static_cast<size_t>(rows * elements) * sizeof(T));
    add_rows(rows, elements, added.data());
    sums = added.data();
  }
  const auto output = [&](size_t index) { return static_cast<T*>(outputs[index]); };
  const bool has_bias = in.at<T>(kWholeBias) != nullptr;
  kernels.write_sums(shape, sums,
                     {output(0), output(1), has_bias ? output(2) : nullptr,
                      has_bias && Traits<T>::kArrays.recurrent_bias ? output(3) : nullptr});
}

}  // namespace

#define RINGAR_CHUNKS(kCell, Traits, Name, name)                                             \
  const Computation& name##_pack_computation() {                                             \
    static const Computation computation{Name "Pack",         "ringar_" #name "_pack",       \
                                         check_pack<kCell>,   pack_shapes<Traits>,           \
                                         pack<Traits, float>, pack<Traits, double>};         \
    return computation;                                                                      \
  }                                                                                          \
  const Computation& name##_chunk_gradient_computation() {                                   \
    static const Computation computation{                                                    \
        Name "ChunkGradient",          "ringar_" #name "_chunk_gradient",                    \
        check_chunk_gradient<kCell>,   chunk_gradient_shapes<Traits>,                        \
        chunk_gradient<Traits, float>, chunk_gradient<Traits, double>,                       \
        {static_cast<int>(kSums), 2}};                                                       \
    return computation;                                                                      \
  }                                                                                          \
  const Computation& name##_weights_computation() {                                          \
    static const Computation computation{Name "Weights",         "ringar_" #name "_weights", \
                                         check_sums<kCell>,      weights_shapes<kCell>,      \
                                         weights<Traits, float>, weights<Traits, double>};   \
    return computation;                                                                      \
  }

RINGAR_CHUNKS(kSimpleRnn, SimpleRnnTraits, "RingarSimpleRnn", simple_rnn)
RINGAR_CHUNKS(kGru, GruTraits, "RingarGru", gru)
RINGAR_CHUNKS(kLstm, LstmTraits, "RingarLstm", lstm)
#undef RINGAR_CHUNKS

}  // namespace ringar
