#include "algorithms/bruck.h"

#include <algorithm>
#include <cstring>

namespace ringar {
namespace {

constexpr int kChannel = 0;

Status exchange(InterNodeCommunicator& group, int to, const std::byte* outgoing, int from,
                std::byte* incoming, size_t bytes) {
  int handles[] = {-1, -1};
  RINGAR_RETURN_IF_ERROR(group.receive(from, kChannel, incoming, bytes, &handles[0]));
  RINGAR_RETURN_IF_ERROR(group.send(to, kChannel, outgoing, bytes, &handles[1]));
  return group.finish(WaitPolicy::kEager, handles, 2);
}

}  // namespace

Status bruck_allgather(InterNodeCommunicator& group, StagingBuffers& buffers, size_t first_buffer,
                       std::byte* blocks, size_t bytes) {
  const int n = group.size();
  const auto at = [&](std::byte* begin, int block) {
    return begin + bytes * static_cast<size_t>(block);
  };
  // The blocks of this rank, of the next one, and so on.
  std::byte* const rotated = buffers.at(first_buffer, bytes * static_cast<size_t>(n));
  std::memcpy(rotated, at(blocks, group.rank()), bytes);
  for (int has = 1; has < n; has *= 2) {
    const int count = std::min(has, n - has);
    RINGAR_RETURN_IF_ERROR(exchange(group, group.neighbor(-has), rotated, group.neighbor(has),
                                    at(rotated, has), bytes * static_cast<size_t>(count)));
  }
  for (int distance = 1; distance < n; ++distance)
    std::memcpy(at(blocks, group.neighbor(distance)), at(rotated, distance), bytes);
  return {};
}

Status bruck_alltoall(InterNodeCommunicator& group, StagingBuffers& buffers, size_t first_buffer,
                      std::byte* blocks, size_t bytes) {
  const int n = group.size();
  const auto at = [&](std::byte* begin, int block) {
    return begin + bytes * static_cast<size_t>(block);
  };
  const size_t all = bytes * static_cast<size_t>(n);
  // Blocks by the total distance that they travel.
  std::byte* const rotated = buffers.at(first_buffer, all);
  std::byte* const outgoing = buffers.at(first_buffer + 1, all);
  std::byte* const incoming = buffers.at(first_buffer + 2, all);
  for (int distance = 0; distance < n; ++distance)
    std::memcpy(at(rotated, distance), at(blocks, group.neighbor(distance)), bytes);
  for (int bit = 1; bit < n; bit *= 2) {
    int count = 0;
    for (int distance = bit; distance < n; ++distance)
      if (distance & bit) std::memcpy(at(outgoing, count++), at(rotated, distance), bytes);
    RINGAR_RETURN_IF_ERROR(exchange(group, group.neighbor(bit), outgoing, group.neighbor(-bit),
                                    incoming, bytes * static_cast<size_t>(count)));
    count = 0;
    for (int distance = bit; distance < n; ++distance)
      if (distance & bit) std::memcpy(at(rotated, distance), at(incoming, count++), bytes);
  }
  for (int distance = 0; distance < n; ++distance)
    std::memcpy(at(blocks, group.neighbor(-distance)), at(rotated, distance), bytes);
  return {};
}

}  // namespace ringar
