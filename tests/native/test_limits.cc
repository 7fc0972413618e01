// Limits of containers, read from made-up files of control groups.

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>

#include "check.h"
#include "engine/limits.h"

namespace ringar::test {
namespace {

struct Folder {
  std::string path;
  ControlGroups groups;

  explicit Folder(const std::string& of_process) {
    char name[] = "/tmp/ringar-limits-XXXXXX";
    path = mkdtemp(name);
    groups = {path + "/cgroup", path + "/sys"};
    make("");
    write("/../cgroup", of_process);
  }
  ~Folder() { EXPECT_EQ(std::system(("rm -r " + path).c_str()), 0); }

  void make(const std::string& folder) { mkdir((groups.mount + folder).c_str(), 0700); }
  void write(const std::string& file, const std::string& text) {
    std::ofstream(groups.mount + file) << text << "\n";
  }
};

constexpr uint64_t kMegabyte = 1000000;

TEST(limits_are_the_smallest_of_control_groups_and_those_above) {
  Folder folder("0::/pod/container");
  for (const char* name : {"/pod", "/pod/container"}) folder.make(name);
  folder.write("/pod/memory.max", "300000000");
  folder.write("/pod/memory.current", "100000000");
  folder.write("/pod/memory.stat", "anon 90000000\ninactive_file 10000000");
  folder.write("/pod/cpu.max", "150000 100000");
  folder.write("/pod/container/memory.max", "max");
  folder.write("/pod/container/memory.current", "100000000");
  folder.write("/pod/container/cpu.max", "max 100000");
  EXPECT_EQ(memory_limit(folder.groups), 300 * kMegabyte);
  EXPECT_EQ(free_memory(folder.groups), 210 * kMegabyte);
  EXPECT(std::abs(processor_quota(folder.groups) - 1.5) < 1e-9);
}

TEST(limits_of_version_1_where_the_container_sees_its_group_as_root) {
  Folder folder("4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/");
  for (const char* name : {"/memory", "/cpu"}) folder.make(name);
  folder.write("/memory/memory.limit_in_bytes", "200000000");
  folder.write("/memory/memory.usage_in_bytes", "250000000");
  folder.write("/cpu/cpu.cfs_quota_us", "50000");
  folder.write("/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(memory_limit(folder.groups), 200 * kMegabyte);
  EXPECT_EQ(free_memory(folder.groups), 0u);
  EXPECT(std::abs(processor_quota(folder.groups) - 0.5) < 1e-9);
}

TEST(limits_without_control_groups_are_those_of_the_host) {
  Folder folder("nonsense");
  folder.write("/cpu.max", "1 1");
  EXPECT(memory_limit(folder.groups) > kMegabyte);
  EXPECT(free_memory(folder.groups) > kMegabyte);
  EXPECT(std::isinf(processor_quota(folder.groups)));
}

}  // namespace
}  // namespace ringar::test
