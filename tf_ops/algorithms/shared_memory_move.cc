// All-gather, broadcast and all-to-all in shared memory.
//
// Each is a stream through the send buffers: in every step a rank publishes the next chunk of what
// it sends, and the others copy it to where it belongs. Where ranks may send different amounts, the
// first send buffer opens with a header, the row counts of this rank's arrays, and the data follow
// it at once, so that a small all-gather takes a single exchange. A chunk p of a stream is
//
//   step 0      header, then bytes [0, first)
//   step s > 0  bytes [first + (s-1) * room, first + s * room)
//
// with first = room - header. The number of steps is that of the longest stream, which everybody
// knows after step 0. Bytes read per rank: what it receives; nothing is forwarded.
//
// A long input in the pool (engine/output_pool.h) is in no stream: its rank tells in the header
// where it lies, and the others copy it from there in step 0. They all meet once more at the end,
// so that nobody's input changes while others read it.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "algorithms/offers.h"
#include "algorithms/rows.h"
#include "algorithms/shared_memory.h"
#include "engine/buffer_list.h"
#include "engine/copy.h"

namespace ringar {
namespace {

struct StreamSteps {
  size_t header, room;

  size_t begin(uint64_t step) const { return step == 0 ? 0 : room - header + (step - 1) * room; }
  size_t end(uint64_t step, size_t total) const { return std::min(total, begin(step + 1)); }
  size_t place(uint64_t step) const { return step == 0 ? header : 0; }
  // The bytes of a send buffer, if the stream has `total`.
  size_t buffer_bytes(uint64_t step, size_t total) const {
    return place(step) + end(step, total) - std::min(begin(step), total);
  }
  bool is_last(uint64_t step, size_t longest) const { return begin(step + 1) >= longest; }
};

size_t header_bytes(size_t numbers) {
  return (numbers * sizeof(int64_t) + 63) / 64 * 64;
}

// Copies an input from where it lies; in place it is there.
void copy_from_pool(IntraNodeCommunicator& host, std::byte* to, const std::byte* from,
                    size_t bytes) {
  if (to != from && bytes > 0) host.timed(Span::kCopy, [&] { std::memcpy(to, from, bytes); });
}

Status finish(IntraNodeCommunicator& host, bool any_read_in_pool) {
  return any_read_in_pool ? host.part_from_inputs() : Status();
}

Status header_too_long(size_t arrays) {
  return {RINGAR_UNSUPPORTED, "expected fewer arrays in one group, received " +
                                  std::to_string(arrays) + "; split the group"};
}

// Puts the chunk of this step into this rank's send buffer.
void publish(IntraNodeCommunicator& host, const StreamSteps& stream, const BufferList& outgoing,
             uint64_t step) {
  host.timed(Span::kCopy, [&] {
    outgoing.gather(stream.begin(step), stream.end(step, outgoing.size()),
                    host.send_buffer(host.rank()) + stream.place(step));
  });
}

// Copies the chunks of all ranks, step by step. `outgoing` has the data of this rank, `incoming[r]`
// the place for those of rank r; `at` is where this rank's chunks lie in a send buffer of r.
Status run_stream(IntraNodeCommunicator& host, const StreamSteps& stream,
                  const BufferList& outgoing, const std::vector<BufferList>& incoming,
                  size_t longest) {
  for (uint64_t step = 0;; ++step) {
    if (step > 0) {
      publish(host, stream, outgoing, step);
      RINGAR_RETURN_IF_ERROR(host.exchange());
    }
    host.timed(Span::kCopy, [&] {
      for (int r = 0; r < host.size(); ++r) {
        const BufferList& to = incoming[static_cast<size_t>(r)];
        to.scatter(stream.begin(step), stream.end(step, to.size()),
                   host.send_buffer(r) + stream.place(step));
      }
    });
    host.finish_step(stream.buffer_bytes(step, longest), 0);
    if (stream.is_last(step, longest)) return {};
  }
}

}  // namespace

Status allgather_in_shared_memory(IntraNodeCommunicator& host, Request& request) {
  const size_t arrays = request.tensors.size(), ranks = static_cast<size_t>(host.size());
  const StreamSteps stream{header_bytes(2 * arrays), host.send_buffer_bytes()};
  if (stream.header > stream.room) return header_too_long(arrays);
  const auto counts = [&](int r) { return reinterpret_cast<int64_t*>(host.send_buffer(r)); };
  const auto offers = [&](int r) { return reinterpret_cast<uint64_t*>(counts(r) + arrays); };

  BufferList& outgoing = host.workspace().array();
  offer_inputs(host, request, offers(host.rank()), arrays);
  for (size_t i = 0; i < arrays; ++i) {
    const Tensor& tensor = request.tensors[i];
    const int64_t rows = counts(host.rank())[i] = tensor.shape.rows();
    if (!offers(host.rank())[i])
      outgoing.append(tensor.input, nullptr, static_cast<size_t>(rows) * request.row_bytes(i));
  }
  publish(host, stream, outgoing, 0);
  RINGAR_RETURN_IF_ERROR(host.handshake());

  bool any_in_pool = false;
  request.received.resize(arrays * ranks);
  for (int r = 0; r < host.size(); ++r)
    for (size_t i = 0; i < arrays; ++i) {
      request.received[i * ranks + static_cast<size_t>(r)] = counts(r)[i];
      any_in_pool |= offers(r)[i] != 0;
    }
  std::vector<BufferList>& incoming = host.workspace().array_per_rank();
  const auto place = [&](size_t i, int r, std::byte* output, size_t bytes) {
    if (const std::byte* const pooled = host.offered(r, offers(r)[i]))
      copy_from_pool(host, output, pooled, bytes);
    else
      incoming[static_cast<size_t>(r)].append(nullptr, output, bytes);
  };
  RINGAR_RETURN_IF_ERROR(place_rows(request, host.size(), place));
  size_t longest = 0;
  for (const BufferList& array : incoming) longest = std::max(longest, array.size());
  RINGAR_RETURN_IF_ERROR(run_stream(host, stream, outgoing, incoming, longest));
  return finish(host, any_in_pool);
}

Status broadcast_in_shared_memory(IntraNodeCommunicator& host, Request& request) {
  const size_t arrays = request.tensors.size();
  const int root = request.spec.root;
  const bool is_root = host.rank() == root;
  // All ranks know alike whether there are offers.
  const size_t room = host.send_buffer_bytes();
  const bool offering = request.input_bytes() >= OutputPool::kLeastBytes && 8 * arrays < room;
  const StreamSteps stream{offering ? header_bytes(arrays) : 0, room};
  auto* const offers = reinterpret_cast<uint64_t*>(host.send_buffer(root));
  if (is_root && offering) offer_inputs(host, request, offers, arrays);
  const auto pooled = [&](size_t i) { return offering ? host.offered(root, offers[i]) : nullptr; };
  const auto bytes_of = [&](const Tensor& t) {
    return static_cast<size_t>(t.shape.elements()) * request.element_size();
  };

  BufferList& outgoing = host.workspace().array();
  for (size_t i = 0; is_root && i < arrays; ++i)
    if (!pooled(i))
      outgoing.append(request.tensors[i].input, nullptr, bytes_of(request.tensors[i]));
  publish(host, stream, outgoing, 0);
  RINGAR_RETURN_IF_ERROR(host.handshake());

  bool any_in_pool = false;
  std::vector<BufferList>& incoming = host.workspace().array_per_rank();
  BufferList& from_root = incoming[static_cast<size_t>(root)];
  for (size_t i = 0; i < arrays; ++i) {
    const Tensor& t = request.tensors[i];
    any_in_pool |= pooled(i) != nullptr;
    if (pooled(i))
      copy_from_pool(host, t.output, pooled(i), bytes_of(t));
    else  // The root, too, copies what is in cache by then, unless it has it in place.
      from_root.append(nullptr, is_root && t.output == t.input ? nullptr : t.output, bytes_of(t));
  }
  RINGAR_RETURN_IF_ERROR(run_stream(host, stream, outgoing, incoming, from_root.size()));
  return finish(host, any_in_pool);
}

// A send buffer has one compartment per receiver, each a stream of its own. The header is the
// number of rows for every receiver, and where the input lies in the pool; the longest of the n^2
// streams tells the number of steps.
Status alltoall_in_shared_memory(IntraNodeCommunicator& host, Request& request) {
  const size_t ranks = static_cast<size_t>(host.size()), me = static_cast<size_t>(host.rank());
  Tensor& tensor = request.tensors[0];
  const size_t row = request.row_bytes(0);
  const size_t header = header_bytes(ranks + 1);
  const size_t room = (host.send_buffer_bytes() - header) / ranks / 64 * 64;
  auto compartment = [&](int rank, size_t receiver) {
    return host.send_buffer(rank) + header + receiver * room;
  };

  std::vector<size_t>& starts = host.workspace().starts;
  const auto counts_of = [&](int r) { return reinterpret_cast<int64_t*>(host.send_buffer(r)); };
  const auto offer = [&](int r) { return reinterpret_cast<uint64_t*>(counts_of(r) + ranks); };
  offer_inputs(host, request, offer(host.rank()), 1);
  int64_t* const counts = counts_of(host.rank());
  for (size_t r = 0; r < ranks; ++r) {
    counts[r] = request.splits.empty()
                    ? even_share(tensor.shape.rows(), host.size(), static_cast<int>(r))
                    : request.splits[r];
    starts[r + 1] = starts[r] + static_cast<size_t>(counts[r]) * row;
  }
  const bool in_pool = *offer(host.rank()) != 0;
  auto publish = [&](uint64_t step) {
    if (in_pool) return;
    for (size_t r = 0; r < ranks; ++r) {
      const size_t size = starts[r + 1] - starts[r], from = std::min(size, step * room);
      if (size > from)
        copy_to_shared(compartment(host.rank(), r), tensor.input + starts[r] + from,
                       std::min(room, size - from));
    }
  };
  host.timed(Span::kCopy, [&] { publish(0); });
  RINGAR_RETURN_IF_ERROR(host.handshake());

  size_t longest = 0;
  bool any_in_pool = false;
  request.received.assign(ranks, 0);
  std::vector<const std::byte*>& pooled = host.workspace().sources;  // what is for this rank
  for (int r = 0; r < host.size(); ++r) {
    const int64_t* const peer_counts = counts_of(r);
    request.received[static_cast<size_t>(r)] = peer_counts[me];
    const std::byte* const input = host.offered(r, *offer(r));
    pooled[static_cast<size_t>(r)] = input
                                         ? input + static_cast<size_t>(std::accumulate(
                                                       peer_counts, peer_counts + me, int64_t{0})) *
                                                       row
                                         : nullptr;
    any_in_pool |= input != nullptr;
    if (!input)
      longest = std::max(
          longest, static_cast<size_t>(*std::max_element(peer_counts, peer_counts + ranks)) * row);
  }
  const int64_t rows =
      std::accumulate(request.received.begin(), request.received.end(), int64_t{0});
  if (tensor.output == nullptr) tensor.output = request.allocate(0, rows);
  if (tensor.output == nullptr) return no_memory_for(static_cast<size_t>(rows) * row);

  for (uint64_t step = 0;; ++step) {
    if (step > 0) {
      host.timed(Span::kCopy, [&] { publish(step); });
      RINGAR_RETURN_IF_ERROR(host.exchange());
    }
    host.timed(Span::kCopy, [&] {
      std::byte* to = tensor.output;
      for (size_t r = 0; r < ranks; ++r) {
        const size_t size = static_cast<size_t>(request.received[r]) * row;
        const size_t from = std::min(size, step * room);
        if (pooled[r] && step == 0 && size > 0)
          std::memcpy(to, pooled[r], size);
        else if (!pooled[r] && size > from)
          std::memcpy(to + from, compartment(static_cast<int>(r), me), std::min(room, size - from));
        to += size;
      }
    });
    host.finish_step();
    if ((step + 1) * room >= longest) return finish(host, any_in_pool);
  }
}

}  // namespace ringar
