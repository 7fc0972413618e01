#include "shared_mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <tuple>

#include "engine/status.h"
#include "engine/tuning.h"

extern "C" {
void* __real_mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void* at, size_t bytes);
}

namespace {

using Part = std::tuple<int, off_t, size_t>;
struct Mapping {
  void* memory;
  int users;
};

bool sharing = false;
std::mutex mutex;
std::map<Part, Mapping>& mappings() {
  static std::map<Part, Mapping> all;
  return all;
}

}  // namespace

extern "C" void* __wrap_mmap(void* at, size_t bytes, int protection, int flags, int fd,
                             off_t offset) {
  if (fd >= 0 && static_cast<size_t>(offset) % ringar::page_bytes() != 0) {
    errno = EINVAL;
    return MAP_FAILED;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  if (!sharing || fd < 0) return __real_mmap(at, bytes, protection, flags, fd, offset);
  Mapping& mapping = mappings()[{fd, offset, bytes}];
  if (mapping.users == 0) mapping.memory = __real_mmap(at, bytes, protection, flags, fd, offset);
  if (mapping.memory != MAP_FAILED) ++mapping.users;
  return mapping.memory;
}

extern "C" int __wrap_munmap(void* at, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto& [part, mapping] : mappings()) {
    if (mapping.memory != at || mapping.users == 0) continue;
    if (--mapping.users > 0) return 0;
    mappings().erase(part);
    break;
  }
  return __real_munmap(at, bytes);
}

namespace ringar::test {

SharedMappings::SharedMappings() {
  const std::lock_guard<std::mutex> lock(mutex);
  sharing = true;
}

SharedMappings::~SharedMappings() {
  const std::lock_guard<std::mutex> lock(mutex);
  sharing = false;
  RINGAR_CHECK(mappings().empty());
}

}  // namespace ringar::test
