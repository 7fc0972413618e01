// A /dev/shm that is too small, as containers have it: all ranks say so, and none is killed.

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "plans.h"
#include "ranks.h"
#include "requests.h"

namespace ringar::test {
namespace {

// A file without a name, in a file system of so many bytes that is mounted nowhere.
int file_in_a_tmpfs_of(const char* bytes) {
  // Their numbers are the same everywhere; linux/mount.h does not go with sys/mount.h.
  constexpr long kFsopen = 430, kFsconfig = 431, kFsmount = 432;
  constexpr int kSetString = 1, kCreate = 6, kCloseOnExec = 1;
  const auto system = static_cast<int>(syscall(kFsopen, "tmpfs", kCloseOnExec));
  if (system < 0) throw Skipped{"a file system needs root"};
  EXPECT_EQ(syscall(kFsconfig, system, kSetString, "size", bytes, 0), 0);
  EXPECT_EQ(syscall(kFsconfig, system, kCreate, nullptr, nullptr, 0), 0);
  const auto mounted = static_cast<int>(syscall(kFsmount, system, kCloseOnExec, 0));
  const int file = openat(mounted, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  EXPECT(file >= 0);
  close(mounted);
  close(system);
  return file;
}

void expect_to_be_told(const Status& status, const char* needed, const char* size) {
  EXPECT_CONTAINS(status.message(), needed);
  EXPECT_CONTAINS(status.message(), " MB free of " + std::string(size) + " MB in /dev/shm");
  EXPECT_CONTAINS(status.message(), "docker run --shm-size=1g");
}

TEST(shortage_at_the_start_is_an_error_of_all_ranks) {
  const int file = file_in_a_tmpfs_of("8m");
  on_processes(4, [&](Rank& me) {
    me.config.segment_fd = file;
    const auto engine = me.engine();
    const Status status = engine->start();
    EXPECT_EQ(status.code(), RINGAR_OUT_OF_MEMORY);
    EXPECT_CONTAINS(status.message(), "rank " + std::to_string(me.rank) + " | rank ");
    expect_to_be_told(status,
                      "has too little shared memory: expected 2.6 MB of shared memory for each of "
                      "4 ranks on this host, received ",
                      "8.4");
  });
  close(file);
}

// Also of those that are no members. All else goes on.
TEST(shortage_for_a_process_set_is_an_error_of_all_ranks) {
  const int file = file_in_a_tmpfs_of("8m");
  on_processes(3, [&](Rank& me) {
    me.config.segment_fd = file;
    const auto engine = me.engine();
    EXPECT_OK(engine->start());
    int id = -1;
    for (int i = 0; i < 2; ++i) {
      const Status status = engine->add_process_set({0, 2}, &id);
      EXPECT_EQ(status.code(), RINGAR_MISMATCH);
      expect_to_be_told(status,
                        ", refused: expected 1.6 MB of shared memory for each of 2 ranks on this "
                        "host, received ",
                        "8.4");
    }
    EXPECT_OK(engine->add_process_set({1}, &id));
    run_plan(random_plan(5, {1}, id, 100'000), me.rank, *engine);
    TestRequest large(allreduce_spec("large"));
    add_ones(large, me.rank, 2'000'000);
    EXPECT_OK(engine->run(large));
    expect_sum_of_ranks(large, me.size);
  });
  close(file);
}

}  // namespace
}  // namespace ringar::test
