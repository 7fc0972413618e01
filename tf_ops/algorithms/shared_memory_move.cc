// All-gather, broadcast and all-to-all in shared memory.
//
// Each is a stream through the outboxes: in every step a rank publishes the next piece of what it
// sends, and the others copy it to where it belongs. Where ranks may send different amounts, the
// first outbox opens with a header, the row counts of this rank's arrays, and the data follow it at
// once, so that a small all-gather takes a single exchange. A piece p of a stream is
//
//   step 0      header, then bytes [0, first)
//   step s > 0  bytes [first + (s-1) * room, first + s * room)
//
// with first = room - header. The number of steps is that of the longest stream, which everybody
// knows after step 0. Bytes read per rank: what it receives; nothing is forwarded.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "algorithms/rows.h"
#include "algorithms/shared_memory.h"
#include "algorithms/virtual_array.h"
#include "engine/copy.h"

namespace ringar {
namespace {

struct Stream {
  size_t header, room;

  size_t begin(uint64_t step) const { return step == 0 ? 0 : room - header + (step - 1) * room; }
  size_t end(uint64_t step, size_t total) const { return std::min(total, begin(step + 1)); }
  size_t place(uint64_t step) const { return step == 0 ? header : 0; }
  bool is_last(uint64_t step, size_t longest) const { return begin(step + 1) >= longest; }
};

size_t header_bytes(size_t numbers) {
  return (numbers * sizeof(int64_t) + 63) / 64 * 64;
}

Status header_too_long(size_t arrays) {
  return {RINGAR_UNSUPPORTED, "expected fewer arrays in one group, received " +
                                  std::to_string(arrays) + "; split the group"};
}

// Puts the piece of this step into this rank's outbox.
void publish(HostGroup& host, const Stream& stream, const VirtualArray& outgoing, uint64_t step) {
  host.timed(Stretch::kCopy, [&] {
    outgoing.gather(stream.begin(step), stream.end(step, outgoing.size()),
                    host.outbox(host.rank()) + stream.place(step));
  });
}

// Copies the pieces of all ranks, step by step. `outgoing` is what this rank sends, `incoming[r]`
// where what rank r sends goes; `at` is where this rank's pieces lie in an outbox of r.
Status run_stream(HostGroup& host, const Stream& stream, const VirtualArray& outgoing,
                  const std::vector<VirtualArray>& incoming, size_t longest) {
  for (uint64_t step = 0;; ++step) {
    if (step > 0) {
      publish(host, stream, outgoing, step);
      RINGAR_RETURN_IF_ERROR(host.exchange());
    }
    host.timed(Stretch::kCopy, [&] {
      for (int r = 0; r < host.size(); ++r) {
        const VirtualArray& to = incoming[static_cast<size_t>(r)];
        to.scatter(stream.begin(step), stream.end(step, to.size()),
                   host.outbox(r) + stream.place(step));
      }
    });
    host.finish_step();
    if (stream.is_last(step, longest)) return {};
  }
}

}  // namespace

Status allgather_in_shared_memory(HostGroup& host, Request& request) {
  const size_t arrays = request.tensors.size(), ranks = static_cast<size_t>(host.size());
  const Stream stream{header_bytes(arrays), host.outbox_bytes()};
  if (stream.header > stream.room) return header_too_long(arrays);

  VirtualArray& outgoing = host.workspace().array();
  auto* counts = reinterpret_cast<int64_t*>(host.outbox(host.rank()));
  for (size_t i = 0; i < arrays; ++i) {
    const Tensor& tensor = request.tensors[i];
    counts[i] = tensor.shape.rows();
    outgoing.append(tensor.input, nullptr, static_cast<size_t>(counts[i]) * request.row_bytes(i));
  }
  publish(host, stream, outgoing, 0);
  RINGAR_RETURN_IF_ERROR(host.open());

  request.received.resize(arrays * ranks);
  for (size_t r = 0; r < ranks; ++r) {
    const auto* theirs = reinterpret_cast<const int64_t*>(host.outbox(static_cast<int>(r)));
    for (size_t i = 0; i < arrays; ++i) request.received[i * ranks + r] = theirs[i];
  }
  std::vector<VirtualArray>& incoming = host.workspace().array_per_rank();
  const auto place = [&](size_t, int r, std::byte* output, size_t bytes) {
    incoming[static_cast<size_t>(r)].append(nullptr, output, bytes);
  };
  RINGAR_RETURN_IF_ERROR(place_rows(request, host.size(), place));
  size_t longest = 0;
  for (const VirtualArray& array : incoming) longest = std::max(longest, array.size());
  return run_stream(host, stream, outgoing, incoming, longest);
}

Status broadcast_in_shared_memory(HostGroup& host, Request& request) {
  VirtualArray& outgoing = host.workspace().array();
  std::vector<VirtualArray>& incoming = host.workspace().array_per_rank();
  const bool is_root = host.rank() == request.spec.root;
  VirtualArray& from_root = incoming[static_cast<size_t>(request.spec.root)];
  for (const Tensor& t : request.tensors) {
    const size_t bytes = static_cast<size_t>(t.shape.elements()) * request.element_size();
    if (is_root) outgoing.append(t.input, nullptr, bytes);
    // The root, too, copies what is in cache by then, unless it has it in place.
    from_root.append(nullptr, is_root && t.output == t.input ? nullptr : t.output, bytes);
  }
  const Stream stream{0, host.outbox_bytes()};
  publish(host, stream, outgoing, 0);
  RINGAR_RETURN_IF_ERROR(host.open());
  return run_stream(host, stream, outgoing, incoming, from_root.size());
}

// An outbox has one compartment per receiver, each a stream of its own. The header is the number
// of rows for every receiver, and the longest of the n^2 streams tells the number of steps.
Status alltoall_in_shared_memory(HostGroup& host, Request& request) {
  const size_t ranks = static_cast<size_t>(host.size()), me = static_cast<size_t>(host.rank());
  Tensor& tensor = request.tensors[0];
  const size_t row = request.row_bytes(0);
  const size_t header = header_bytes(ranks);
  const size_t room = (host.outbox_bytes() - header) / ranks / 64 * 64;
  auto compartment = [&](int rank, size_t receiver) {
    return host.outbox(rank) + header + receiver * room;
  };

  std::vector<size_t>& starts = host.workspace().starts;
  auto* counts = reinterpret_cast<int64_t*>(host.outbox(host.rank()));
  for (size_t r = 0; r < ranks; ++r) {
    counts[r] = request.splits.empty()
                    ? even_share(tensor.shape.rows(), host.size(), static_cast<int>(r))
                    : request.splits[r];
    starts[r + 1] = starts[r] + static_cast<size_t>(counts[r]) * row;
  }
  auto publish = [&](uint64_t step) {
    for (size_t r = 0; r < ranks; ++r) {
      const size_t size = starts[r + 1] - starts[r], from = std::min(size, step * room);
      if (size > from)
        copy_to_shared(compartment(host.rank(), r), tensor.input + starts[r] + from,
                       std::min(room, size - from));
    }
  };
  host.timed(Stretch::kCopy, [&] { publish(0); });
  RINGAR_RETURN_IF_ERROR(host.open());

  size_t longest = 0;
  request.received.assign(ranks, 0);
  for (int r = 0; r < host.size(); ++r) {
    const auto* theirs = reinterpret_cast<const int64_t*>(host.outbox(r));
    longest =
        std::max(longest, static_cast<size_t>(*std::max_element(theirs, theirs + ranks)) * row);
    request.received[static_cast<size_t>(r)] = theirs[me];
  }
  const int64_t rows =
      std::accumulate(request.received.begin(), request.received.end(), int64_t{0});
  if (tensor.output == nullptr) tensor.output = request.allocate(0, rows);
  if (tensor.output == nullptr) return no_memory_for(static_cast<size_t>(rows) * row);

  for (uint64_t step = 0;; ++step) {
    if (step > 0) {
      host.timed(Stretch::kCopy, [&] { publish(step); });
      RINGAR_RETURN_IF_ERROR(host.exchange());
    }
    host.timed(Stretch::kCopy, [&] {
      std::byte* to = tensor.output;
      for (size_t r = 0; r < ranks; ++r) {
        const size_t size = static_cast<size_t>(request.received[r]) * row;
        const size_t from = std::min(size, step * room);
        if (size > from)
          std::memcpy(to + from, compartment(static_cast<int>(r), me), std::min(room, size - from));
        to += size;
      }
    });
    host.finish_step();
    if ((step + 1) * room >= longest) return {};
  }
}

}  // namespace ringar
