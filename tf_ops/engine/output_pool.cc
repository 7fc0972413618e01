#include "engine/output_pool.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>

#include "engine/limits.h"
#include "engine/tuning.h"

namespace ringar {
namespace {

constexpr size_t kDefaultBytes = size_t{1} << 30;

// The pools of this process, for fork(): that of the engine, and those of which memory is left.
struct Pools {
  std::mutex mutex;
  std::set<OutputPool*> all;
  int pipe[2] = {-1, -1};  // from the forked child
};

Pools& pools() {
  static auto* const pools = new Pools;
  return *pools;
}

}  // namespace

size_t OutputPool::bytes_for(int ranks, uint64_t segment_bytes) {
  const auto n = static_cast<uint64_t>(ranks);
  const char* const number = std::getenv("RINGAR_OUTPUT_POOL");
  uint64_t bytes = number ? std::strtoull(number, nullptr, 10) : kDefaultBytes;
  if (!number) bytes = std::min(bytes, memory_limit() / 4 / n);
  return std::min(bytes, segment_bytes / 4 / n) / page_bytes() * page_bytes();
}

OutputPool::OutputPool(std::byte* memory, size_t bytes, int place, int places, Provide provide,
                       IsShort is_short)
    : memory_(memory),
      bytes_(bytes),
      place_(place),
      places_(places),
      provide_(std::move(provide)),
      is_short_(std::move(is_short)),
      free_{{0, bytes}} {
  static std::once_flag once;
  std::call_once(once,
                 [] { pthread_atfork(prepare_fork, go_on_after_fork, copy_in_forked_child); });
  const std::lock_guard<std::mutex> lock(pools().mutex);
  pools().all.insert(this);
}

OutputPool::~OutputPool() {
  {
    const std::lock_guard<std::mutex> lock(pools().mutex);
    pools().all.erase(this);
  }
  munmap(memory_, bytes_ * static_cast<size_t>(places_));
}

OutputPool::Memory::Memory(std::shared_ptr<OutputPool> pool, uint64_t offset)
    : pool_(std::move(pool)), offset_(offset) {}

OutputPool::Memory::~Memory() {
  pool_->give_back(offset_);
}

std::byte* OutputPool::Memory::data() const {
  return pool_->part() + offset_;
}

std::unique_ptr<OutputPool::Memory> OutputPool::take(size_t bytes) {
  if (bytes < kLeastBytes || bytes > bytes_) return nullptr;
  const size_t needed_bytes = page_up(bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!provide_ || in_child_) return nullptr;
  const auto room = std::find_if(free_.begin(), free_.end(),
                                 [&](const auto& range) { return range.second >= needed_bytes; });
  if (room == free_.end()) return nullptr;
  const auto [offset, length] = *room;
  const uint64_t end = offset + needed_bytes;
  if (end > high_) {
    if (is_short_(end - high_) || !provide_(high_, end - high_)) return nullptr;
    high_ = end;
  }
  free_.erase(room);
  if (length > needed_bytes) free_[end] = length - needed_bytes;
  allocations_[offset] = {needed_bytes, false};
  return std::make_unique<Memory>(shared_from_this(), offset);
}

void OutputPool::give_back(uint64_t offset) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto allocation = allocations_.find(offset);
  if (in_child_ || allocation->second.forfeited) return;
  const size_t bytes = allocation->second.bytes;
  allocations_.erase(allocation);
  free_addresses(offset, bytes);
  if (provide_)
    discard_surplus();
  else
    discard(offset, offset + bytes);
}

void OutputPool::free_addresses(uint64_t offset, size_t bytes) {
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + bytes) {
    bytes += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

// The pages are the system's again.
void OutputPool::discard(uint64_t begin, uint64_t end) {
  if (begin < end) madvise(part() + begin, end - begin, MADV_REMOVE);
}

void OutputPool::discard_surplus() {
  const auto last = std::prev(free_.end());
  if (last->first + last->second < high_) return;
  const uint64_t keep = last->first + (is_short_(0) ? 0 : page_up(bytes_ / 2));
  if (keep >= high_) return;
  discard(keep, high_);
  high_ = keep;
}

void OutputPool::forfeit(const std::byte* memory) {
  if (!has(memory)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto next = allocations_.upper_bound(offset_of(memory));
  if (next != allocations_.begin()) std::prev(next)->second.forfeited = true;
}

void OutputPool::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!provide_) return;
  provide_ = nullptr;
  for (const auto& [offset, bytes] : free_) discard(offset, std::min(offset + bytes, high_));
}

size_t OutputPool::bytes_taken() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t bytes = 0;
  for (const auto& [offset, allocation] : allocations_) bytes += allocation.bytes;
  return bytes;
}

size_t OutputPool::bytes_with_pages() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return high_;
}

// fork() runs these one after the other, and for one fork at a time. The parent waits until the
// child has closed its end of the pipe, or has died.
void OutputPool::prepare_fork() {
  Pools& registry = pools();
  registry.mutex.lock();
  bool any = false;
  for (OutputPool* pool : registry.all) {
    pool->mutex_.lock();
    any |= !pool->allocations_.empty();
  }
  if (!any || pipe2(registry.pipe, O_CLOEXEC) != 0) registry.pipe[0] = registry.pipe[1] = -1;
}

void OutputPool::go_on_after_fork() {
  Pools& registry = pools();
  if (registry.pipe[0] >= 0) {
    ::close(registry.pipe[1]);
    char none;
    while (::read(registry.pipe[0], &none, 1) < 0 && errno == EINTR) {
    }
    ::close(registry.pipe[0]);
  }
  for (OutputPool* pool : registry.all) pool->mutex_.unlock();
  registry.mutex.unlock();
}

void OutputPool::copy_in_forked_child() {
  Pools& registry = pools();
  for (OutputPool* pool : registry.all) {
    pool->copy_what_is_taken();
    pool->in_child_ = true;
    pool->mutex_.unlock();
  }
  if (registry.pipe[0] >= 0) {
    ::close(registry.pipe[0]);
    ::close(registry.pipe[1]);
  }
  registry.mutex.unlock();
}

void OutputPool::copy_what_is_taken() {
  for (const auto& [offset, allocation] : allocations_) {
    std::byte* const address = part() + offset;
    void* const copy =
        mmap(nullptr, allocation.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) continue;
    std::memcpy(copy, address, allocation.bytes);
    mremap(copy, allocation.bytes, allocation.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, address);
  }
}

}  // namespace ringar
