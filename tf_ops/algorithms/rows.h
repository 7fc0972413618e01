// Rows of a request's arrays and the ranks that they go to, or come from.

#pragma once

#include "engine/request.h"
#include "engine/status.h"

namespace ringar {

// Calls visit(array, rank, rows, input, bytes) for each rank's rows of each array of a
// reduce-scatter or all-to-all, in order.
template <typename Visit>
void deal_rows(const Request& request, int ranks, Visit visit) {
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const Tensor& tensor = request.tensors[i];
    const std::byte* input = tensor.input;
    for (int r = 0; r < ranks; ++r) {
      const int64_t rows = request.splits.empty() ? even_share(tensor.shape.rows(), ranks, r)
                                                  : request.splits[static_cast<size_t>(r)];
      const size_t bytes = static_cast<size_t>(rows) * request.row_bytes(i);
      visit(i, r, rows, input, bytes);
      input += bytes;
    }
  }
}

// Finds memory for the outputs of an all-gather or all-to-all, whose `received` is set, and calls
// visit(array, rank, output, bytes) for the place of each rank's rows.
template <typename Visit>
Status place_rows(Request& request, int ranks, Visit visit) {
  const int64_t* received = request.received.data();
  for (size_t i = 0; i < request.tensors.size(); ++i, received += ranks) {
    int64_t rows = 0;
    for (int r = 0; r < ranks; ++r) rows += received[r];
    Tensor& tensor = request.tensors[i];
    if (tensor.output == nullptr) tensor.output = request.allocate(i, rows);
    if (tensor.output == nullptr)
      return no_memory_for(static_cast<size_t>(rows) * request.row_bytes(i));
    std::byte* output = tensor.output;
    for (int r = 0; r < ranks; ++r) {
      const size_t bytes = static_cast<size_t>(received[r]) * request.row_bytes(i);
      visit(i, r, output, bytes);
      output += bytes;
    }
  }
  return {};
}

}  // namespace ringar
