// Broadcast and all-to-all between hosts.
//
// Broadcast is a chain: the root sends to its right neighbour, and each rank sends on what it has
// received while the next chunks arrive. Every rank receives and sends K bytes once, and those of a
// host are side by side, so that K bytes cross each host's link; the last one has them n - 2 chunks
// after the first. A message that fits into one chunk goes down a binomial tree instead, in
// ceil(log2 n) messages one after the other: n - 1 latencies would be most of a chain's time then,
// while a long message is sent up to log2 n times by the same rank of a tree, and once in a chain.
//
// All-to-all is n - 1 exchanges: in the s-th one a rank sends to the one s places to its right what
// is for it, and receives from the one s places to its left, so that no rank receives from two at
// once. Each byte goes straight to its destination, (n-1)/n of K bytes in all, the least possible;
// but with n - 1 messages, latencies dominate where ranks exchange a few bytes. Ranks exchange row
// counts first (bruck.h), and send nothing where there are no rows.

#include <algorithm>
#include <cstring>
#include <vector>

#include "algorithms/between_hosts.h"
#include "algorithms/bruck.h"
#include "algorithms/rows.h"
#include "algorithms/stream.h"

namespace ringar {
namespace {

constexpr size_t kTreeBytes = 64000;  // up to here one message takes all

// `distance`: from the root. All ranks know the size.
Status down_the_tree(InterNodeCommunicator& group, StagingBuffers& buffers, const BufferList& from,
                     const BufferList& to, int distance) {
  constexpr int kChannel = InterNodeCommunicator::kChannels - 2;
  const size_t bytes = from.size();
  std::byte* const message = buffers.at(0, bytes);
  int bit = 1;
  if (distance == 0) {
    from.gather(0, bytes, message);
    while (bit < group.size()) bit *= 2;
  } else {
    while (!(distance & bit)) bit *= 2;
    int handle = -1;
    RINGAR_RETURN_IF_ERROR(group.receive(group.neighbor(-bit), kChannel, message, bytes, &handle));
    RINGAR_RETURN_IF_ERROR(group.finish(WaitPolicy::kEager, &handle, 1));
    to.scatter(0, bytes, message);
  }
  std::vector<int> handles;
  for (bit /= 2; bit > 0; bit /= 2) {
    if (distance + bit >= group.size()) continue;
    handles.push_back(-1);
    RINGAR_RETURN_IF_ERROR(
        group.send(group.neighbor(bit), kChannel, message, bytes, &handles.back()));
  }
  return group.finish(WaitPolicy::kEager, handles.data(), handles.size());
}

// Each rank but the root receives from its left neighbour, each but the last one sends on.
Status down_the_chain(InterNodeCommunicator& group, StagingBuffers& buffers,
                      const BufferList& array, int distance) {
  const bool is_root = distance == 0, is_last = distance == group.size() - 1;
  Stream in(group, group.neighbor(-1), array, buffers, 0);
  Stream out(group, group.neighbor(1), array, buffers, InterNodeCommunicator::kChannels);
  const auto policy = wait_policy_for(array.size());
  return group.until_done(policy, [&](bool* moved, bool* done) -> Status {
    if (!is_root) RINGAR_RETURN_IF_ERROR(in.advance_receiving(moved));
    const size_t ready = is_root ? SIZE_MAX : in.chunks_done();
    if (!is_last) RINGAR_RETURN_IF_ERROR(out.advance_sending(ready, moved));
    *done = (is_root || in.is_done()) && (is_last || out.is_done());
    return {};
  });
}

Status swap(InterNodeCommunicator& group, StagingBuffers& buffers, int to,
            const BufferList& outgoing, int from, const BufferList& incoming) {
  Stream in(group, from, incoming, buffers, 0);
  Stream out(group, to, outgoing, buffers, InterNodeCommunicator::kChannels);
  const auto policy = wait_policy_for(std::max(outgoing.size(), incoming.size()));
  return group.until_done(policy, [&](bool* moved, bool* done) -> Status {
    RINGAR_RETURN_IF_ERROR(in.advance_receiving(moved));
    RINGAR_RETURN_IF_ERROR(out.advance_sending(SIZE_MAX, moved));
    *done = in.is_done() && out.is_done();
    return {};
  });
}

}  // namespace

Status broadcast_between_hosts(Communicator& c, Request& request) {
  RINGAR_RETURN_IF_ERROR(handshake_between_hosts(c));
  InterNodeCommunicator& group = c.everybody();
  const bool is_root = c.rank() == request.spec.root;
  const int root = c.place_of(request.spec.root);
  const int distance = (group.rank() - root + group.size()) % group.size();
  // A rank forwards the array that it has received.
  BufferList& array = c.host().workspace().array();
  for (const Tensor& t : request.tensors) {
    const size_t bytes = static_cast<size_t>(t.shape.elements()) * request.element_size();
    array.append(is_root ? t.input : t.output, t.output, bytes);
    if (is_root && bytes > 0 && t.input != t.output) std::memcpy(t.output, t.input, bytes);
  }
  if (array.size() == 0) return {};
  if (array.size() <= kTreeBytes) return down_the_tree(group, c.buffers(), array, array, distance);
  return down_the_chain(group, c.buffers(), array, distance);
}

Status alltoall_between_hosts(Communicator& c, Request& request) {
  RINGAR_RETURN_IF_ERROR(handshake_between_hosts(c));
  InterNodeCommunicator& group = c.everybody();
  const size_t ranks = static_cast<size_t>(c.size());

  // By place: the number of rows for it, then of rows from it.
  const size_t bytes = sizeof(int64_t);
  auto* const counts = reinterpret_cast<int64_t*>(c.buffers().at(0, bytes * ranks));
  std::vector<BufferList> outgoing(ranks), incoming(ranks);
  const auto deal = [&](size_t, int r, int64_t rows, const std::byte* input, size_t size) {
    const auto place = static_cast<size_t>(c.place_of(r));
    counts[place] = rows;
    outgoing[place].append(input, nullptr, size);
  };
  deal_rows(request, c.size(), deal);
  const auto me = static_cast<size_t>(group.rank());
  RINGAR_RETURN_IF_ERROR(
      bruck_alltoall(group, c.buffers(), 1, reinterpret_cast<std::byte*>(counts), bytes));

  request.received.resize(ranks);
  for (int r = 0; r < c.size(); ++r)
    request.received[static_cast<size_t>(r)] = counts[c.place_of(r)];
  const auto place_output = [&](size_t, int r, std::byte* output, size_t size) {
    incoming[static_cast<size_t>(c.place_of(r))].append(nullptr, output, size);
  };
  RINGAR_RETURN_IF_ERROR(place_rows(request, c.size(), place_output));
  outgoing[me].for_each(0, outgoing[me].size(),
                        [&](const std::byte* from, std::byte*, size_t n, size_t offset) {
                          incoming[me].scatter(offset, offset + n, from);
                        });
  for (int distance = 1; distance < c.size(); ++distance) {
    const int to = group.neighbor(distance), from = group.neighbor(-distance);
    RINGAR_RETURN_IF_ERROR(swap(group, c.buffers(), to, outgoing[static_cast<size_t>(to)], from,
                                incoming[static_cast<size_t>(from)]));
  }
  return {};
}

}  // namespace ringar
