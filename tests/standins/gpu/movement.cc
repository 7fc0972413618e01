// How the data of a collective moves: pairwise, each rank to all that need what it has.

#include <algorithm>
#include <cstring>

#include "operation.h"

namespace standin {

namespace {

constexpr size_t kPiece = 256 * 1024;  // of a reduction, which keeps one of each rank

void copy(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace

bool Operation::move(const Call& call) {
  if (call.kind <= Kind::kReduceScatter) return reduce_in_pieces(call);
  const int rank = communicator->rank;
  const size_t bytes = call.count * size_of(call.type);
  Exchange exchange(*communicator);
  for (int peer = 0; peer < communicator->ranks; ++peer) {
    const bool is_all = call.kind == Kind::kAllGather;
    std::byte* const part = call.out + (is_all ? static_cast<size_t>(peer) * bytes : 0);
    if (peer == rank) {
      if (is_all || peer == call.peer) copy(part, call.in, bytes);
      continue;
    }
    if (is_all || call.peer == rank) exchange.send(peer, call.in, bytes);
    if (is_all || call.peer == peer) exchange.receive(peer, part, bytes);
  }
  return exchange.run();
}

// A piece at a time: to each rank what it reduces, from each rank what this one reduces.
bool Operation::reduce_in_pieces(const Call& call) {
  const int rank = communicator->rank;
  const auto ranks = static_cast<size_t>(communicator->ranks);
  const size_t size = size_of(call.type), most = kPiece / size;
  const auto reduces = [&](int peer) { return call.kind != Kind::kReduce || peer == call.peer; };
  const auto part_of = [&](int peer) {
    const bool is_cut = call.kind == Kind::kReduceScatter;
    return call.in + (is_cut ? static_cast<size_t>(peer) * call.count * size : 0);
  };
  std::vector<std::vector<std::byte>> boxes(ranks);
  for (size_t begin = 0; begin < call.count; begin += most) {
    const size_t count = std::min(most, call.count - begin);
    std::vector<const std::byte*> inputs(ranks);
    Exchange exchange(*communicator);
    for (int peer = 0; peer < communicator->ranks; ++peer) {
      auto& box = boxes[static_cast<size_t>(peer)];
      box.resize(count * size);
      inputs[static_cast<size_t>(peer)] = box.data();
      if (peer == rank) inputs[static_cast<size_t>(peer)] = part_of(rank) + begin * size;
      if (peer == rank) continue;
      if (reduces(peer)) exchange.send(peer, part_of(peer) + begin * size, count * size);
      if (reduces(rank)) exchange.receive(peer, box.data(), count * size);
    }
    if (!exchange.run()) return false;
    if (reduces(rank)) reduce(inputs, call.out + begin * size, count, call.type, call.reduction);
  }
  return true;
}

}  // namespace standin
