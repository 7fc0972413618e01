#include "engine/limits.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <vector>

#include "engine/timeline.h"

namespace ringar {
namespace {

constexpr uint64_t kNone = UINT64_MAX;

std::string text_of(const std::string& file) {
  std::string text;
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  char part[4096];
  for (ssize_t n = 0; (n = read(fd, part, sizeof part)) > 0;)
    text.append(part, static_cast<size_t>(n));
  close(fd);
  return text;
}

std::vector<std::string> lines_of(const std::string& file) {
  const std::string text = text_of(file);
  std::vector<std::string> lines;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
  }
  return lines;
}

// The folder of a controller for each control group from that of the process to the root.
std::vector<std::string> folders(const ControlGroups& groups, const std::string& controller) {
  std::vector<std::string> result;
  for (const std::string& line : lines_of(groups.of_process)) {
    // "0::/path" is version 2; "4:cpu,cpuacct:/path" is version 1.
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_unified = controllers == ",,";
    if (!is_unified && controllers.find("," + controller + ",") == std::string::npos) continue;
    const std::string mount = groups.mount + (is_unified ? "" : "/" + controller);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    for (;; path.erase(path.rfind('/'))) {
      result.push_back(mount + path);
      if (path.find('/') == std::string::npos) break;
    }
  }
  return result;
}

// The number at the begin of a file; `otherwise` without a number, as in "max".
uint64_t number_in(const std::string& file, uint64_t otherwise) {
  const std::string text = text_of(file);
  const bool is_number = !text.empty() && text[0] >= '0' && text[0] <= '9';
  return is_number ? std::strtoull(text.c_str(), nullptr, 10) : otherwise;
}

// The number behind `key` in a file of lines "key number"; 0 without the key.
uint64_t entry(const std::string& file, const std::string& key) {
  for (const std::string& line : lines_of(file))
    if (line.compare(0, key.size() + 1, key + " ") == 0)
      return std::strtoull(line.c_str() + key.size(), nullptr, 10);
  return 0;
}

struct Usage {
  uint64_t limit, bytes;
};

Usage usage_of(const std::string& folder) {
  const std::string limits[] = {"/memory.max", "/memory.limit_in_bytes"};
  const std::string usages[] = {"/memory.current", "/memory.usage_in_bytes"};
  Usage usage{kNone, 0};
  for (const std::string& file : limits)
    usage.limit = std::min(usage.limit, number_in(folder + file, kNone));
  for (const std::string& file : usages)
    usage.bytes = std::max(usage.bytes, number_in(folder + file, 0));
  const uint64_t droppable = std::max(entry(folder + "/memory.stat", "inactive_file"),
                                      entry(folder + "/memory.stat", "total_inactive_file"));
  usage.bytes -= std::min(usage.bytes, droppable);
  return usage;
}

double quota_of(const std::string& folder) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // "max 100000" or "150000 100000": microseconds of a period.
  const std::string quota_and_period = text_of(folder + "/cpu.max");
  const size_t blank = quota_and_period.find(' ');
  const double unified = std::strtod(quota_and_period.c_str(), nullptr);
  if (blank != std::string::npos && unified > 0 && quota_and_period[0] != 'm')
    return unified / std::strtod(quota_and_period.c_str() + blank, nullptr);
  const uint64_t quota = number_in(folder + "/cpu.cfs_quota_us", 0);
  const uint64_t period = number_in(folder + "/cpu.cfs_period_us", 0);
  if (quota == 0 || period == 0) return kInfinity;
  return static_cast<double>(quota) / static_cast<double>(period);
}

uint64_t memory_of_host() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

uint64_t memory_limit(const ControlGroups& groups) {
  uint64_t bytes = memory_of_host();
  rlimit addresses{};
  if (getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY)
    bytes = std::min<uint64_t>(bytes, addresses.rlim_cur);
  for (const std::string& folder : folders(groups, "memory"))
    bytes = std::min(bytes, usage_of(folder).limit);
  return bytes;
}

uint64_t free_memory(const ControlGroups& groups) {
  const uint64_t kilobytes = entry("/proc/meminfo", "MemAvailable:");
  uint64_t bytes = kilobytes > 0 ? kilobytes * 1024 : memory_of_host();
  for (const std::string& folder : folders(groups, "memory")) {
    const Usage usage = usage_of(folder);
    if (usage.limit != kNone)
      bytes = std::min(bytes, usage.limit - std::min(usage.limit, usage.bytes));
  }
  return bytes;
}

bool is_short_of_memory(size_t growth) {
  constexpr int64_t kBetweenLooks = 100'000'000;  // ns
  static const uint64_t least = memory_limit() / 8;
  static std::atomic<int64_t> looked{0};
  static std::atomic<uint64_t> available{0};
  const int64_t now = monotonic_ns();
  if (looked.load() == 0 || now - looked.load() > kBetweenLooks) {
    available.store(free_memory());
    looked.store(now);
  }
  if (available.load() < least + growth) return true;
  available -= growth;
  return false;
}

Processors Processors::of_process() {
  Processors processors;
  cpu_set_t affinity;
  static_assert(sizeof affinity == sizeof processors.bits);
  if (sched_getaffinity(0, sizeof affinity, &affinity) == 0)
    std::memcpy(processors.bits, &affinity, sizeof affinity);
  return processors;
}

void Processors::add(const Processors& processors) {
  for (size_t i = 0; i < std::size(bits); ++i) bits[i] |= processors.bits[i];
}

int Processors::count() const {
  return std::accumulate(std::begin(bits), std::end(bits), 0,
                         [](int sum, uint64_t word) { return sum + __builtin_popcountll(word); });
}

double processor_quota(const ControlGroups& groups) {
  double processors = std::numeric_limits<double>::infinity();
  for (const std::string& folder : folders(groups, "cpu"))
    processors = std::min(processors, quota_of(folder));
  return processors;
}

}  // namespace ringar
