#include "exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "communicator.h"
#include "standin.h"

namespace standin {

Exchange::Exchange(Communicator& communicator)
    : communicator_(communicator), peers_(static_cast<size_t>(communicator.ranks)) {}

void Exchange::send(int to, const void* data, size_t bytes) {
  auto* const begin = static_cast<unsigned char*>(const_cast<void*>(data));
  if (bytes > 0) peers_[static_cast<size_t>(to)].out.push_back({begin, bytes, {}});
}

void Exchange::receive(int from, void* data, size_t bytes, std::function<std::string()> then) {
  auto* const begin = static_cast<unsigned char*>(data);
  if (bytes > 0) peers_[static_cast<size_t>(from)].in.push_back({begin, bytes, std::move(then)});
}

// A span at a time, in chunks of a slot: the receiver knows its length.
bool Exchange::push(int to) {
  Channel& channel = communicator_.meeting->channel(communicator_.rank, to);
  auto& spans = peers_[static_cast<size_t>(to)].out;
  const uint64_t number = channel.writes.load(std::memory_order_relaxed);
  if (spans.empty() || number - channel.reads.load(std::memory_order_acquire) == 2) return false;
  Span& span = spans.front();
  const size_t bytes = std::min(span.bytes, Channel::kSlot);
  channel.bytes[number % 2] = static_cast<uint32_t>(bytes);
  std::memcpy(channel.slots[number % 2], span.data, bytes);
  channel.writes.store(number + 1, std::memory_order_release);
  span.data += bytes;
  span.bytes -= bytes;
  if (span.bytes == 0) spans.pop_front();
  return true;
}

bool Exchange::pull(int from) {
  Channel& channel = communicator_.meeting->channel(from, communicator_.rank);
  auto& spans = peers_[static_cast<size_t>(from)].in;
  const uint64_t number = channel.reads.load(std::memory_order_relaxed);
  if (spans.empty() || number == channel.writes.load(std::memory_order_acquire)) return false;
  Span& span = spans.front();
  const size_t bytes = std::min(span.bytes, Channel::kSlot);
  std::string fault;
  if (channel.bytes[number % 2] != bytes)
    fault = text("rank %d sends %u bytes to rank %d, which expects %zu", from,
                 channel.bytes[number % 2], communicator_.rank, bytes);
  else
    std::memcpy(span.data, channel.slots[number % 2], bytes);
  channel.reads.store(number + 1, std::memory_order_release);
  span.data += bytes;
  span.bytes -= bytes;
  if (span.bytes == 0) {
    if (fault.empty() && span.then) fault = span.then();
    spans.pop_front();
  }
  if (!fault.empty()) communicator_.fail_all(ringar::nccl::kInvalidUsage, fault);
  return true;
}

bool Exchange::is_idle(int peer) const {
  const Peer& queues = peers_[static_cast<size_t>(peer)];
  const Channel& out = communicator_.meeting->channel(communicator_.rank, peer);
  return queues.out.empty() && queues.in.empty() && out.writes == out.reads;
}

std::string Exchange::awaited() const {
  std::string ranks;
  for (int peer = 0; peer < communicator_.ranks; ++peer)
    if (!is_idle(peer)) ranks += (ranks.empty() ? "" : ", ") + std::to_string(peer);
  return text("rank %d has waited too long for %s", communicator_.rank, ranks.c_str());
}

bool Exchange::run() {
  double last = now();
  while (true) {
    bool is_moving = false, is_waiting = false;
    for (int peer = 0; peer < communicator_.ranks; ++peer) {
      is_moving |= push(peer);
      is_moving |= pull(peer);
      is_waiting |= !is_idle(peer);
    }
    if (communicator_.is_stopped()) return false;
    if (!is_waiting) return true;
    if (is_moving) {
      last = now();
    } else if (now() - last > timeout()) {
      communicator_.fail(ringar::nccl::kRemoteError, awaited());
      return false;
    } else {
      pause();
    }
  }
}

}  // namespace standin
