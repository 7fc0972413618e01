#include "engine/tuning.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace ringar {
namespace {

constexpr size_t kSliceUnit = 4096;

// MPI sends messages of 64 KiB and a bit at once over TCP; larger ones ask first.
constexpr size_t kChunkBytes = 64000, kLeastChunkBytes = 16384;
// As many as keep the link busy while a rank waits for its turn on a processor that computes.
constexpr size_t kLanes = 24, kMostLanes = 30;

// Blocks of halving and doubling: so many that one lane adds while others send, none of them so
// short that its messages are all latency, nor so long that it fills the caches.
constexpr size_t kBlocks = 4, kBlockLanes = 8;
constexpr size_t kLeastBlockBytes = 65536, kBlockBytes = 524288;

struct Row {
  size_t ranks, slice, small, inlined;
};

constexpr Row kTable[] = {
#include "engine/tuning_table.inc"
};

std::string_view overrides() {
  const char* text = std::getenv("RINGAR_TUNING");
  return text ? text : "";
}

// The number behind `key=`, or `otherwise`.
size_t value_of(std::string_view key, size_t otherwise) {
  std::string_view rest = overrides();
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    if (pair.substr(0, key.size()) == key && pair.substr(key.size(), 1) == "=")
      return std::strtoull(pair.data() + key.size() + 1, nullptr, 10);
  }
  return otherwise;
}

}  // namespace

Tuning tuning_for(size_t ranks) {
  const Row* row = kTable;
  while (row->ranks < ranks) ++row;
  const size_t slice =
      std::max(value_of("slice", row->slice) / kSliceUnit * kSliceUnit, kSliceUnit);
  return {slice, std::min(value_of("small", row->small), slice * ranks),
          value_of("inline", row->inlined)};
}

size_t past_caches_bytes(size_t fallback) {
  return value_of("past", fallback);
}

bool has_streams(bool fallback) {
  return value_of("streams", fallback) != 0;
}

LinkTuning link_tuning(size_t bytes, int ranks) {
  const size_t lanes = std::clamp<size_t>(value_of("lanes", kLanes), 1, kMostLanes);
  const size_t largest = std::max(value_of("chunk", kChunkBytes) / 64 * 64, size_t{64});
  const size_t even = bytes / (lanes * static_cast<size_t>(ranks)) / 64 * 64;
  return {std::clamp(even, std::min(kLeastChunkBytes, largest), largest), static_cast<int>(lanes)};
}

LinkTuning halving_tuning(size_t bytes, int ranks) {
  const size_t lanes = std::clamp<size_t>(value_of("lanes", kBlockLanes), 1, kBlockLanes);
  const size_t block = std::clamp(bytes / kBlocks, kLeastBlockBytes, kBlockBytes);
  const size_t even = block / static_cast<size_t>(ranks) / 64 * 64;
  return {std::max(even, size_t{64}), static_cast<int>(lanes)};
}

size_t page_bytes() {
  return value_of("page", static_cast<size_t>(sysconf(_SC_PAGESIZE)));
}

size_t page_up(size_t bytes) {
  const size_t page = page_bytes();
  return (bytes + page - 1) / page * page;
}

std::string tuning_overrides() {
  return std::string(overrides());
}

uint64_t tuning_override() {
  uint64_t hash = 0;
  for (char c : overrides()) hash = hash * 31 + static_cast<unsigned char>(c);
  return hash;
}

}  // namespace ringar
