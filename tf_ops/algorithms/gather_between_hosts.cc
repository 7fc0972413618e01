// Reduce-scatter and all-gather between hosts: the two halves of the ring (ring.h), over all ranks,
// those of a host side by side in it. What crosses a host's link is then (n-1)/n of the bytes in
// each direction, however many ranks it has, in n - 1 steps. No way sends less, so this is the way
// for long arrays; short ones wait for n - 1 messages one after the other, where halves of
// recursive doubling would need log2 n: such arrays are better reduced whole.
//
// A rank's segment is its share of the rows, of all arrays of the group; shares may differ. In an
// all-gather no rank knows the others' row counts: they are exchanged first (bruck.h).

#include <cstring>
#include <vector>

#include "algorithms/between_hosts.h"
#include "algorithms/bruck.h"
#include "algorithms/ring.h"
#include "algorithms/rows.h"

namespace ringar {
namespace {

// The total if every rank of the ring had the largest share; it decides the size of chunks.
size_t even_total(const std::vector<BufferList>& shares) {
  size_t longest = 0;
  for (const BufferList& share : shares) longest = std::max(longest, share.size());
  return longest * shares.size();
}

Status run_ring(Communicator& c, Ring::Kind kind, const Spec& spec,
                const std::vector<BufferList>& shares) {
  const LinkTuning tuning = link_tuning(even_total(shares), c.size());
  const Chunks chunks = Chunks::of_shares(shares, tuning.chunk_bytes);
  const WireCodec codec(spec);
  return Ring(c.everybody(), kind, chunks, codec, c.buffers(), tuning.lanes)
      .run(wait_policy_for(even_total(shares)));
}

// Row counts of all ranks, as request.received wants them: array by array, in the set's order.
Status exchange_rows(Communicator& c, Request& request) {
  const size_t arrays = request.tensors.size(), ranks = static_cast<size_t>(c.size());
  const size_t bytes = arrays * sizeof(int64_t);
  std::byte* const rows = c.buffers().at(0, bytes * ranks);
  const auto rows_of = [&](int place) { return rows + bytes * static_cast<size_t>(place); };
  auto* const counts = reinterpret_cast<int64_t*>(rows_of(c.everybody().rank()));
  for (size_t i = 0; i < arrays; ++i) counts[i] = request.tensors[i].shape.rows();
  RINGAR_RETURN_IF_ERROR(bruck_allgather(c.everybody(), c.buffers(), 1, rows, bytes));

  request.received.resize(arrays * ranks);
  for (int place = 0; place < c.size(); ++place)
    for (size_t i = 0; i < arrays; ++i)
      std::memcpy(&request.received[i * ranks + static_cast<size_t>(c.set_rank(place))],
                  rows_of(place) + i * sizeof(int64_t), sizeof(int64_t));
  return {};
}

}  // namespace

Status reducescatter_between_hosts(Communicator& c, Request& request) {
  RINGAR_RETURN_IF_ERROR(handshake_between_hosts(c));
  std::vector<BufferList> shares(static_cast<size_t>(c.size()));  // by place in the ring
  deal_rows(request, c.size(), [&](size_t i, int r, int64_t, const std::byte* input, size_t bytes) {
    std::byte* const output = r == c.rank() ? request.tensors[i].output : nullptr;
    shares[static_cast<size_t>(c.place_of(r))].append(input, output, bytes);
  });
  return run_ring(c, Ring::kReduceScatter, request.spec, shares);
}

Status allgather_between_hosts(Communicator& c, Request& request) {
  RINGAR_RETURN_IF_ERROR(handshake_between_hosts(c));
  RINGAR_RETURN_IF_ERROR(exchange_rows(c, request));
  std::vector<BufferList> shares(static_cast<size_t>(c.size()));
  const auto place = [&](size_t i, int r, std::byte* output, size_t bytes) {
    const std::byte* const input = r == c.rank() ? request.tensors[i].input : nullptr;
    shares[static_cast<size_t>(c.place_of(r))].append(input, output, bytes);
    if (input && bytes > 0 && output != input) std::memcpy(output, input, bytes);
  };
  RINGAR_RETURN_IF_ERROR(place_rows(request, c.size(), place));
  return run_ring(c, Ring::kAllGather, request.spec, shares);
}

}  // namespace ringar
