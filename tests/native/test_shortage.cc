// A /dev/shm that is too small, as containers have it: all ranks say so, and none is killed. Limits
// of the size of files, and a sandbox without fallocate().

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "check.h"
#include "plans.h"
#include "point_to_point.h"
#include "ranks.h"
#include "requests.h"

namespace {
bool has_fallocate = true;
}

extern "C" {
int __real_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes) {
  if (has_fallocate) return __real_fallocate(fd, mode, offset, bytes);
  errno = EOPNOTSUPP;
  return -1;
}
}

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

void expect_to_be_told(const Status& status, const char* cause, const char* size) {
  EXPECT_CONTAINS(status.message(), cause);
  EXPECT_CONTAINS(status.message(), " MB free of " + std::string(size) + " MB in /dev/shm");
  EXPECT_CONTAINS(status.message(), "docker run --shm-size=1g");
}

TEST(shortage_at_the_start_is_an_error_of_all_ranks) {
  const int file = file_in_a_tmpfs_of("6m");
  on_processes(4, [&](Rank& me) {
    me.config.segment_fd = file;
    const auto engine = me.engine();
    const Status status = engine->start();
    EXPECT_EQ(status.code(), RINGAR_OUT_OF_MEMORY);
    EXPECT_CONTAINS(status.message(), "rank " + std::to_string(me.rank) + " | rank ");
    expect_to_be_told(status,
                      "has too little shared memory: expected 2.0 MB of shared memory for each of "
                      "4 ranks on this host, received ",
                      "6.3");
  });
  close(file);
}

// Also of those that are no members. All else goes on.
TEST(shortage_for_a_process_set_is_an_error_of_all_ranks) {
  const int file = file_in_a_tmpfs_of("8m");
  on_processes(3, [&](Rank& me) {
    me.config.segment_fd = file;
    const auto engine = me.start();
    int id = -1;
    for (int i = 0; i < 2; ++i) {
      const Status status = engine->add_process_set({0, 2}, &id);
      EXPECT_EQ(status.code(), RINGAR_MISMATCH);
      expect_to_be_told(status,
                        ", refused: expected 3.1 MB of shared memory for each of 2 ranks on this "
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

void limit_files(rlim_t bytes) {
  signal(SIGXFSZ, SIG_IGN);  // as Python does
  const rlimit limit{bytes, bytes};
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

// Collectives, and messages of the first and of the last tag that has room.
void use(Rank& me, Engine& engine, int tags) {
  run_plan(random_plan(5, {0, 1}, 0, 300'000), me.rank, engine);
  for (const int tag : {0, -1, tags - 1}) {
    Send send(1, {"", "float32", 0, tag});
    Recv recv(0, {"", "float32", 0, tag});
    EXPECT_OK(me.rank ? engine.run(recv.of({1000})) : engine.run(send.with({1000}, 3)));
    if (me.rank == 1) recv.expect({1000}, 3);
  }
}

TEST(files_of_a_limited_size_have_room_for_four_starts) {
  on_processes(2, [&](Rank& me) {
    limit_files(rlim_t{256} << 20);
    for (int start = 0; start < 4; ++start) {
      auto engine = me.start();
      use(me, *engine, 400);
      Send far(1 - me.rank, {"", "float32", 0, Spec::kUserTags - 1});
      const Status status = engine->run(far.with({1}));
      EXPECT_EQ(status.code(), RINGAR_OUT_OF_MEMORY);
      EXPECT_CONTAINS(status.message(),
                      "messages with tag 1023, received a limit of 268.4 MB on the "
                      "size of files (RLIMIT_FSIZE)");
      me.meet(start);
      engine->stop();
    }
    const Status status = me.engine()->start();
    EXPECT_EQ(status.code(), RINGAR_OUT_OF_MEMORY);
    EXPECT_CONTAINS(status.message(), "at most 4 calls of ringar.init()");
  });
}

TEST(files_of_too_small_a_size_are_an_error_that_names_the_limit) {
  on_processes(2, [&](Rank& me) {
    limit_files(rlim_t{20} << 20);
    const Status status = me.engine()->start();
    EXPECT_EQ(status.code(), RINGAR_OUT_OF_MEMORY);
    EXPECT_CONTAINS(status.message(), "received a limit of 21.0 MB on the size of files");
    EXPECT_CONTAINS(status.message(), "ulimit -f unlimited");
  });
}

TEST(files_with_other_limits_on_other_ranks_are_a_mismatch) {
  on_processes(2, [&](Rank& me) {
    if (me.rank == 1) limit_files(rlim_t{512} << 20);
    const Status status = me.engine()->start();
    EXPECT_EQ(status.code(), RINGAR_MISMATCH);
    EXPECT_CONTAINS(status.message(), "the same limit on file sizes on all ranks");
  });
}

TEST(pages_come_without_fallocate) {
  on_processes(2, [&](Rank& me) {
    has_fallocate = false;
    const auto engine = me.start();
    use(me, *engine, Spec::kUserTags);
    TestRequest large(allreduce_spec("large"));
    add_ones(large, me.rank, 2'000'000);
    EXPECT_OK(engine->run(large));
    expect_sum_of_ranks(large, me.size);
    me.meet(0);
  });
}

}  // namespace
}  // namespace ringar::test
