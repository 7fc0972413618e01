// The memory and the processor time that this process may use: the host's, or less in a container.
//
// A container's limits are those of its control groups, of version 1 or 2, and of the groups above.
// What a file does not tell is no limit.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ringar {

// Where the kernel shows control groups; tests have files of their own.
struct ControlGroups {
  std::string of_process = "/proc/self/cgroup";
  std::string mount = "/sys/fs/cgroup";
};

// Bytes: the smallest limit of host, control groups and RLIMIT_AS.
uint64_t memory_limit(const ControlGroups& groups = {});

// Bytes that can be used now: the host's available memory, or what a control group has left. Pages
// of files that the kernel can drop count as free.
uint64_t free_memory(const ControlGroups& groups = {});

// Whether less than an eighth of the limit would be free if so many bytes more were used. It looks
// at most ten times a second; any thread may ask.
bool is_short_of_memory(size_t growth);

// A set of processors; those beyond 1,024 are left out.
struct Processors {
  uint64_t bits[16] = {};

  // Where this process may run.
  static Processors of_process();
  void add(const Processors& processors);
  int count() const;
};

// Processors' worth of time that the control groups grant; infinity without a quota.
double processor_quota(const ControlGroups& groups = {});

}  // namespace ringar
