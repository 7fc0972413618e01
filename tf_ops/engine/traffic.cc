#include "engine/traffic.h"

namespace ringar {
namespace {

uint64_t bytes_to_others(const Request& request, int rank, int ranks) {
  const auto n = static_cast<uint64_t>(ranks);
  const uint64_t bytes = request.input_bytes();
  switch (request.spec.collective) {
    case Collective::kAllreduce:
      return 2 * bytes * (n - 1) / n;
    case Collective::kReducescatter:
      return bytes * (n - 1) / n;
    case Collective::kAllgather:
      return bytes * (n - 1);
    case Collective::kBroadcast:
      return rank == request.spec.root && ranks > 1 ? bytes : 0;
    case Collective::kAlltoall: {
      const int64_t rows = request.tensors[0].shape.rows();
      const int64_t share = request.splits.empty() ? even_share(rows, ranks, rank)
                                                   : request.splits[static_cast<size_t>(rank)];
      return bytes - static_cast<uint64_t>(share) * request.row_bytes(0);
    }
    case Collective::kSend:
      return bytes;
    default:
      return 0;
  }
}

}  // namespace

Traffic& Traffic::instance() {
  static Traffic* const traffic = new Traffic;  // never destroyed: specs point into it
  return *traffic;
}

void Traffic::add(const Request& request, int rank, int ranks) {
  const Spec& spec = request.spec;
  if (spec.collective >= Collective::kAddProcessSet) return;  // the library's own
  const uint64_t bytes = bytes_to_others(request, rank, ranks);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!spec.traffic) spec.traffic = &counts_[{spec.collective, spec.name}];
  ++spec.traffic->calls;
  spec.traffic->bytes += bytes;
}

void Traffic::reset() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [key, count] : counts_) count = {};
}

std::string Traffic::text() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string text;
  for (const auto& [key, count] : counts_) {
    if (count.calls == 0) continue;
    text += std::string(name_of(key.first)) + " " + std::to_string(count.calls) + " " +
            std::to_string(count.bytes) + " " + key.second + '\0';
  }
  return text;
}

}  // namespace ringar
