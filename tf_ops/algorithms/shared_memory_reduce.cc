// Allreduce and reduce-scatter in shared memory, with as few copies as can be.
//
// A bucket of tensors is one buffer list. It is cut into blocks, a block into one slice per rank;
// the owner of a slice reduces it. For each block, rank r
//
//   1. copies the slices of all others from its tensors to its send buffer   (arrive)
//   2. reads its own slice from its tensors and from the others' send buffers, reduces it in rank
//      order, and writes the sum to its tensor and to its result buffer       (post result)
//   3. copies the other slices from the others' result buffers to its tensors.
//
// Step 3 of block b runs after step 2 of block b+1, so that a rank waits for its peers once per
// block, and for results that are long there. A tensor is read once and written once, which is what
// a memcpy does; everything between stays in cache, since buffers are reused after a few blocks.
// For n ranks and K bytes a rank moves (n-1)/n K into its send buffer, reads as much from the send
// buffers and (n-1)/n K from the result buffers: the 2 (n-1)/n K of a bandwidth-optimal ring
// (Patarasuk and Yuan 2009), in 2 steps instead of 2 (n-1). The idea of sparing copies is that of
// the movement-avoiding reductions of Peng et al. (SC'23).
//
// The result buffer of step s-2 may be overwritten at step s. Its readers are done: they read it
// before they arrived at step s, and the writer has waited for that.
//
// Where an output lies in the pool (engine/output_pool.h), owners write their sums to it at once,
// and there is no step 3. Where an input does, owners read it there, and there is no step 1 but the
// arrival. In the first step each rank offers what it has there, in the slice of its send buffer
// that is its own and so holds nothing; for each array, each rank may have another answer. Result
// buffers are written where a rank needs them. A rank returns when all owners have posted their
// last result. Where all arrays of all ranks lie in the pool, no buffer is needed, and the whole is
// one block: ranks wait for each other twice, however long it is.
//
// Small arrays skip all that: each rank publishes its whole input and reduces everybody's, in rank
// order, by itself. n K bytes are read, but there is one exchange and no result to wait for.
//
// A long array whose output is not its input goes to its output past the caches, both the sums of
// others and this rank's own, which is then reduced into the result buffer first. Which arrays are
// long is measured (engine/calibration.h).
//
// Every sum is computed in rank order, whichever rank computes it, so all ranks hold the same bits.

#include <algorithm>
#include <vector>

#include "algorithms/offers.h"
#include "algorithms/rows.h"
#include "algorithms/shared_memory.h"
#include "engine/buffer_list.h"
#include "engine/copy.h"
#include "engine/reduce.h"

namespace ringar {
namespace {

Reduction reduction_of(const Spec& spec) {
  return {spec.dtype, spec.op, spec.prescale, spec.postscale};
}

// Reduces [begin, begin + bytes) of `array` with what the other ranks left at `at` in their send
// buffers, or, if `in_pool` tells of it, have in the pool.
void reduce_range(IntraNodeCommunicator& host, const Request& request, const BufferList& array,
                  size_t begin, size_t bytes, size_t at,
                  const std::vector<BufferList>* in_pool = nullptr) {
  std::vector<const std::byte*>& sources = host.workspace().sources;
  const auto reduce_part = [&](const std::byte* input, std::byte* output, size_t part,
                               size_t offset) {
    for (int r = 0; r < host.size(); ++r) {
      const std::byte* const pooled =
          r == host.rank() ? input
          : in_pool        ? (*in_pool)[static_cast<size_t>(r)].at(begin + offset).input
                           : nullptr;
      sources[static_cast<size_t>(r)] = pooled ? pooled : host.send_buffer(r) + at + offset;
    }
    reduce(reduction_of(request.spec), sources.data(), host.size(), output,
           part / request.element_size());
  };
  array.for_each(begin, begin + bytes, reduce_part);
}

Status allreduce_small(IntraNodeCommunicator& host, const Request& request,
                       const BufferList& array) {
  host.timed(Span::kCopy, [&] { array.gather(0, array.size(), host.send_buffer(host.rank())); });
  RINGAR_RETURN_IF_ERROR(host.handshake());
  host.timed(Span::kReduce, [&] { reduce_range(host, request, array, 0, array.size(), 0); });
  host.finish_step(array.size(), 0);
  return {};
}

// Where the slices of one block lie in the buffer list, and one after the other in a send buffer.
struct Block {
  size_t begin, end, slice;

  size_t slice_begin(int rank) const {
    return std::min(end, begin + slice * static_cast<size_t>(rank));
  }
  size_t slice_end(int rank) const { return slice_begin(rank + 1); }
};

// Full blocks have the largest slices that fit; the last one deals out evenly what is left, in
// whole cache lines.
Block block_at(size_t begin, size_t total, size_t ranks, size_t slice) {
  const size_t end = std::min(total, begin + ranks * slice);
  const size_t share = (end - begin + ranks - 1) / ranks;
  return {begin, end, std::min(slice, (share + 63) / 64 * 64)};
}

void publish_slices(const IntraNodeCommunicator& host, const BufferList& array,
                    const Block& block) {
  for (int r = 0; r < host.size(); ++r)
    if (r != host.rank())
      array.gather(block.slice_begin(r), block.slice_end(r),
                   host.send_buffer(host.rank()) + block.slice * static_cast<size_t>(r));
}

Status copy_results(IntraNodeCommunicator& host, const BufferList& array, const Block& block,
                    uint64_t step) {
  for (int r = 0; r < host.size(); ++r) {
    if (r == host.rank()) continue;
    RINGAR_RETURN_IF_ERROR(host.wait_for_result(r, step));
    host.timed(Span::kCopy, [&] {
      array.scatter(block.slice_begin(r), block.slice_end(r), host.result(r, step),
                    host.stores_past_caches(array.size()));
    });
  }
  return {};
}

// Reduces this rank's slice of a block, and sees to it that the others get the sums.
void reduce_slice(IntraNodeCommunicator& host, const Request& request, const BufferList& array,
                  const Offers& offers, const Block& block) {
  const size_t at = block.slice * static_cast<size_t>(host.rank());
  std::byte* const buffer = host.result(host.rank(), host.step());
  const bool past_caches = host.stores_past_caches(array.size());
  const auto copy = past_caches ? copy_past_caches : copy_to_shared;
  std::vector<const std::byte*>& sources = host.workspace().sources;
  size_t begin = block.slice_begin(host.rank()), end = 0;
  const auto reduce_part = [&](const std::byte* input, std::byte* output, size_t bytes,
                               size_t offset) {
    for (int r = 0; r < host.size(); ++r) {
      const std::byte* const pooled = r == host.rank() ? input : offers.at(r, begin + offset).input;
      sources[static_cast<size_t>(r)] = pooled ? pooled : host.send_buffer(r) + at + offset;
    }
    const bool first_to_buffer = past_caches && output != input;
    std::byte* const sum = first_to_buffer ? buffer + offset : output;
    reduce(reduction_of(request.spec), sources.data(), host.size(), sum,
           bytes / request.element_size());
    if (first_to_buffer) copy_past_caches(output, sum, bytes);
    bool unpooled = false;
    for (int r = 0; r < host.size(); ++r) {
      if (r == host.rank()) continue;
      std::byte* const pooled = offers.at(r, begin + offset).output;
      if (pooled) copy(pooled, sum, bytes);  // while it is in cache
      unpooled |= !pooled;
    }
    if (unpooled && !first_to_buffer) copy_to_shared(buffer + offset, sum, bytes);
  };
  for (; begin < block.slice_end(host.rank()); begin = end) {
    end = std::min(block.slice_end(host.rank()), begin + host.slice_bytes());
    array.for_each(begin, end, reduce_part);
  }
}

Status allreduce_by_blocks(IntraNodeCommunicator& host, const Request& request,
                           const BufferList& array) {
  const size_t ranks = static_cast<size_t>(host.size());
  Offers offers(host, request, array, block_at(0, array.size(), ranks, host.slice_bytes()).slice);
  Block previous{};
  for (size_t begin = 0; begin < array.size(); begin = previous.end) {
    Block block = block_at(begin, array.size(), ranks, host.slice_bytes());
    host.timed(Span::kCopy, [&] { publish_slices(host, offers.unpooled(), block); });
    RINGAR_RETURN_IF_ERROR(begin == 0 ? host.handshake() : host.exchange());
    if (begin == 0) offers.read();
    if (offers.are_complete()) block = block_at(0, array.size(), ranks, array.size());
    host.timed(Span::kReduce, [&] { reduce_slice(host, request, array, offers, block); });
    host.post_result();
    if (begin > 0)
      RINGAR_RETURN_IF_ERROR(copy_results(host, offers.unpooled(), previous, host.step() - 1));
    host.finish_step(ranks * block.slice, block.slice);
    previous = block;
  }
  RINGAR_RETURN_IF_ERROR(copy_results(host, offers.unpooled(), previous, host.step() - 1));
  return host.inputs_were_kept();
}

}  // namespace

Status allreduce_in_shared_memory(IntraNodeCommunicator& host, Request& request) {
  const BufferList& array = host.workspace().list_of(request);
  return array.size() <= host.small_allreduce_bytes() ? allreduce_small(host, request, array)
                                                      : allreduce_by_blocks(host, request, array);
}

// As allreduce, but a block is a slice of each rank's rows, and results stay with their owners.
// Where all inputs are in the pool, one block has everything.
Status reducescatter_in_shared_memory(IntraNodeCommunicator& host, Request& request) {
  const size_t ranks = static_cast<size_t>(host.size());
  std::vector<size_t>& sizes = host.workspace().sizes;
  sizes.assign(ranks, 0);
  deal_rows(request, host.size(), [&](size_t, int r, int64_t, const std::byte*, size_t bytes) {
    sizes[static_cast<size_t>(r)] += bytes;
  });
  const size_t longest = *std::max_element(sizes.begin(), sizes.end());
  const size_t slice = std::min(host.slice_bytes(), (longest + 63) / 64 * 64);
  const auto at = [&](int r) { return slice * static_cast<size_t>(r); };

  // As in offers.h, in the slice that is its rank's own.
  const auto offers = [&](int r) {
    return reinterpret_cast<uint64_t*>(host.send_buffer(r) + at(r));
  };
  const size_t offered = std::min(request.tensors.size(), slice / sizeof(uint64_t));
  offer_inputs(host, request, offers(host.rank()), offered);

  std::vector<BufferList>& shares = host.workspace().array_per_rank();
  deal_rows(
      request, host.size(), [&](size_t i, int r, int64_t, const std::byte* input, size_t bytes) {
        const bool is_receiver = r == host.rank(), pooled = i < offered && offers(host.rank())[i];
        shares[static_cast<size_t>(r)].append(is_receiver || !pooled ? input : nullptr,
                                              is_receiver ? request.tensors[i].output : nullptr,
                                              bytes);
      });
  const BufferList& own_share = shares[static_cast<size_t>(host.rank())];
  std::vector<BufferList>& pool_shares = host.workspace().in_pool_per_rank();
  bool any_in_pool = false, all_in_pool = true;
  const auto read_offers = [&](size_t i, int receiver, int64_t, const std::byte* input,
                               size_t bytes) {
    if (receiver != host.rank()) return;
    for (int r = 0; r < host.size(); ++r) {
      const std::byte* const pooled = host.offered(r, i < offered ? offers(r)[i] : 0);
      any_in_pool |= pooled != nullptr;
      all_in_pool &= pooled != nullptr;
      pool_shares[static_cast<size_t>(r)].append(
          pooled ? pooled + (input - request.tensors[i].input) : nullptr, nullptr, bytes);
    }
  };

  size_t begin = 0;
  do {
    size_t end = begin + host.slice_bytes();
    host.timed(Span::kCopy, [&] {
      for (int r = 0; r < host.size(); ++r) {
        const BufferList& share = shares[static_cast<size_t>(r)];
        if (r != host.rank())
          share.gather(begin, std::min(end, share.size()), host.send_buffer(host.rank()) + at(r));
      }
    });
    RINGAR_RETURN_IF_ERROR(begin == 0 ? host.handshake() : host.exchange());
    if (begin == 0) deal_rows(request, host.size(), read_offers);
    if (all_in_pool) end = longest;
    const size_t stop = std::min(end, own_share.size());
    if (begin < stop)
      host.timed(Span::kReduce, [&] {
        reduce_range(host, request, own_share, begin, stop - begin, at(host.rank()),
                     any_in_pool ? &pool_shares : nullptr);
      });
    host.finish_step(ranks * slice, 0);
    begin = end;
  } while (begin < longest);
  return any_in_pool ? host.part_from_inputs() : Status();
}

}  // namespace ringar
