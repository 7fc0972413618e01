// Who has joined, who has left, who is dead; and memory that reads as zero.

#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "check.h"
#include "engine/shared_segment.h"
#include "engine/tuning.h"
#include "ranks.h"

namespace ringar::test {
namespace {

TEST(segment_names_the_ranks_that_do_not_come) {
  on_processes(4, [](Rank& me) {
    me.meet(0);  // a rank that is started late is none that does not come
    if (me.rank == 1 || me.rank == 3) return;
    SharedSegment segment(me.config.segment_fd, me.rank, me.size);
    const auto start = std::chrono::steady_clock::now();
    // Who gives up has not come, as far as the one that waits longer can see.
    const Status status = segment.join(me.rank == 0 ? 1 : 4);
    EXPECT_EQ(status.code(), RINGAR_DEADLINE);
    EXPECT_CONTAINS(status.message(), me.rank == 0 ? "after 1 s still waiting for rank 1, 3. Does"
                                                   : "after 4 s still waiting for rank 0, 1, 3.");
    EXPECT(seconds_since(start) < 15);
  });
}

TEST(segment_start_timeout_is_an_error_of_the_engine_with_its_rank) {
  on_processes(2, [](Rank& me) {
    if (me.rank == 0) return;
    me.config.start_timeout = 0.2;
    Engine engine(me.config);
    const Status status = engine.start();
    EXPECT_EQ(status.code(), RINGAR_DEADLINE);
    EXPECT_CONTAINS(status.message(), "rank 1 | expected all 2 ranks in ringar.init()");
    EXPECT_CONTAINS(status.message(), "--start-timeout");
  });
}

TEST(segment_refuses_a_second_process_with_the_same_rank) {
  on_processes(3, [](Rank& me) {
    const int claimed = me.rank == 2 ? 1 : me.rank;
    if (me.rank == 2) me.await(0, 2);
    SharedSegment segment(me.config.segment_fd, claimed, 2);
    const Status status = segment.join(20);
    if (me.rank < 2) {
      EXPECT_OK(status);
      me.add(0);
      me.await(0, 3);
      EXPECT_EQ(segment.trouble(1 - me.rank), "");
    } else {
      EXPECT_EQ(status.code(), RINGAR_MISMATCH);
      EXPECT_CONTAINS(status.message(), "another process already is rank 1");
      segment.leave();  // as an engine does that could not start; rank 1 stays
      me.add(0);
    }
    me.meet(1);
  });
}

void expect_death_of_rank_1(const SharedSegment& segment) {
  const auto start = std::chrono::steady_clock::now();
  while (segment.trouble(1).empty() && seconds_since(start) < 10)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_CONTAINS(segment.trouble(1), "rank 1 has died: its process is gone");
}

// A child has the descriptors and the memory of its parent, and may outlive it.
TEST(segment_knows_a_rank_from_its_forked_children) {
  const auto all = endings(2, [](Rank& me) {
    SharedSegment segment(me.config.segment_fd, me.rank, me.size);
    EXPECT_OK(segment.join(20));
    if (me.rank == 1 && fork() == 0) {
      SharedSegment again(me.config.segment_fd, 1, 2);
      EXPECT_EQ(again.join(20).code(), RINGAR_MISMATCH);
      again.leave();
      me.add(0);
      return me.await(1, 1);
    }
    me.await(0, 1);
    if (me.rank == 0) EXPECT_EQ(segment.trouble(1), "");
    me.meet(2);
    if (me.rank == 1) raise(SIGKILL);
    expect_death_of_rank_1(segment);
    me.add(1);
  });
  EXPECT_EQ(all[0].code, 0);
  EXPECT_EQ(all[1].signal, SIGKILL);
}

// The kernel drops the record locks of a process that closes any descriptor of the file.
TEST(segment_rank_lives_on_when_it_closes_a_copy_of_the_descriptor) {
  on_processes(2, [](Rank& me) {
    SharedSegment segment(me.config.segment_fd, me.rank, me.size);
    EXPECT_OK(segment.join(20));
    close(dup(me.config.segment_fd));
    me.meet(0);
    EXPECT_EQ(segment.trouble(1 - me.rank), "");
    me.meet(1);
  });
}

// In containers of one host, ranks may have the same pid.
TEST(segment_tells_ranks_with_the_same_pid_apart) {
  const pid_t probe = fork();
  if (probe == 0) _exit(unshare(CLONE_NEWPID) == 0 ? 0 : 1);
  int status = 0;
  EXPECT_EQ(waitpid(probe, &status, 0), probe);
  if (status != 0) throw Skipped{"a pid namespace needs root"};
  on_processes(2, [](Rank& me) {
    EXPECT_EQ(unshare(CLONE_NEWPID), 0);
    const pid_t child = fork();
    if (child > 0) {
      int exit_status = 0;
      EXPECT_EQ(waitpid(child, &exit_status, 0), child);
      return EXPECT_EQ(exit_status, 0);
    }
    EXPECT_EQ(getpid(), 1);
    SharedSegment segment(me.config.segment_fd, me.rank, me.size);
    EXPECT_OK(segment.join(20));
    me.meet(0);
    if (me.rank == 0) expect_death_of_rank_1(segment);
  });
}

TEST(segment_says_what_to_do_without_memory) {
  SharedSegment segment(-1, 0, 2);
  const Status status = segment.join(1);
  EXPECT_EQ(status.code(), RINGAR_OUT_OF_MEMORY);
  EXPECT_CONTAINS(status.message(), "RINGAR_SEGMENT_FD=-1");
  EXPECT_CONTAINS(status.message(), "Start the ranks with ringarrun");
}

TEST(segment_refuses_ranks_that_were_tuned_differently) {
  on_threads(3, [](Rank& me) {
    SharedSegment segment(me.config.segment_fd, me.rank, me.size);
    const Status status = segment.join(20, me.rank == 2 ? 7 : 5);
    EXPECT_EQ(status.code(), RINGAR_MISMATCH);
    EXPECT_CONTAINS(status.message(), "another one on rank 2 than on rank 0");
  });
}

// A process that a rank has started inherits the variables; its descriptor may be any file.
TEST(segment_leaves_files_that_are_no_memory_alone) {
  char path[] = "/tmp/ringar-test-XXXXXX";
  const int fd = mkstemp(path);
  unlink(path);
  SharedSegment segment(fd, 0, 2);
  const Status status = segment.join(1);
  EXPECT_EQ(status.code(), RINGAR_OUT_OF_MEMORY);
  EXPECT_CONTAINS(status.message(), "a child process of a rank is no rank");
  EXPECT_EQ(lseek(fd, 0, SEEK_END), 0);
  close(fd);
}

// Rank 1 goes in one of three ways; rank 0 sees which.
TEST(segment_tells_the_dead_from_those_that_left_or_gave_up) {
  for (const std::string way : {"dies", "leaves", "gives up"}) {
    const auto all = endings(2, [&](Rank& me) {
      SharedSegment segment(me.config.segment_fd, me.rank, me.size);
      EXPECT_OK(segment.join(20));
      if (me.rank == 1) {
        me.await(0, 1);
        if (way == "dies") raise(SIGKILL);
        if (way == "leaves") segment.leave();
        if (way == "gives up") segment.give_up("too tired");
        me.await(0, 2);
        return;
      }
      EXPECT_EQ(segment.trouble(1), "");
      me.add(0);
      const auto start = std::chrono::steady_clock::now();
      while (segment.trouble(1).empty() && seconds_since(start) < 10)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const std::string trouble = segment.trouble(1);
      me.add(0);
      EXPECT_CONTAINS(trouble, way == "dies"     ? "rank 1 has died: its process is gone"
                               : way == "leaves" ? "rank 1 has left"
                                                 : "rank 1 has given up: too tired");
    });
    EXPECT_EQ(all[0].code, 0);
    EXPECT_EQ(all[1].signal, way == "dies" ? SIGKILL : 0);
  }
}

TEST(segment_keeps_the_first_reason_and_cuts_a_long_one) {
  on_threads(2, [](Rank& me) {
    SharedSegment segment(me.config.segment_fd, me.rank, me.size);
    EXPECT_OK(segment.join(20));
    if (me.rank == 0) {
      segment.give_up(std::string(5000, 'x'));
      segment.give_up("another");
    }
    me.meet(0);
    const std::string trouble = segment.trouble(0);
    EXPECT_CONTAINS(trouble, "rank 0 has given up: xxxx");
    EXPECT(trouble.size() > 500 && trouble.size() < 1100);
    me.meet(1);
  });
}

// The n-th of those in the set.
void use_processor(const cpu_set_t& usable, int n) {
  cpu_set_t processor;
  CPU_ZERO(&processor);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &usable) && n-- == 0) CPU_SET(cpu, &processor);
  EXPECT_EQ(sched_setaffinity(0, sizeof processor, &processor), 0);
}

// Ranks share the processors that they may use, however many the host has.
TEST(segment_counts_the_processors_of_its_ranks) {
  on_processes(3, [](Rank& me) {
    cpu_set_t usable;
    EXPECT_EQ(sched_getaffinity(0, sizeof usable, &usable), 0);
    for (const int count : {1, std::min(2, CPU_COUNT(&usable))}) {
      use_processor(usable, me.rank % count);
      SharedSegment segment(me.config.segment_fd, me.rank, me.size);
      EXPECT_OK(segment.join(20));
      EXPECT_EQ(segment.processors(), count);
      me.meet(count - 1);
      segment.leave();
    }
  });
}

TEST(segment_memory_is_shared_and_zero_after_a_discard) {
  on_processes(2, [](Rank& me) {
    SharedSegment segment(me.config.segment_fd, me.rank, me.size);
    EXPECT_OK(segment.join(20));
    constexpr uint64_t kOffset = uint64_t{1} << 30;
    constexpr size_t kBytes = 64 << 10;
    EXPECT_OK(segment.reserve({kOffset, kBytes}, me.size));
    std::byte* memory = segment.map(kOffset, kBytes);
    EXPECT(memory != nullptr);
    EXPECT(memory[5] == std::byte{0});
    me.meet(0);
    if (me.rank == 1) memory[5] = std::byte{42};
    me.meet(1);
    EXPECT(memory[5] == std::byte{42});
    me.meet(2);
    if (me.rank == 0) segment.discard(kOffset, kBytes);
    me.meet(3);
    EXPECT(memory[5] == std::byte{0});
    segment.unmap(memory, kBytes);
  });
}

// A generation's memory is its own: nobody finds flags of the time before.
TEST(segment_starts_clean_in_each_generation) {
  on_processes(2, [](Rank& me) {
    for (int generation = 0; generation < 5; ++generation) {
      SharedSegment segment(me.config.segment_fd, me.rank, me.size);
      EXPECT_OK(segment.join(20, 0, {0, page_bytes()}));
      std::byte* memory = segment.map(0, 4096);
      EXPECT(memory != nullptr);
      EXPECT(memory[0] == std::byte{0});
      me.meet(2 * generation);
      memory[0] = std::byte{1};
      EXPECT_EQ(segment.trouble(1 - me.rank), "");
      me.meet(2 * generation + 1);
      segment.leave();
      segment.unmap(memory, 4096);
    }
  });
}

}  // namespace
}  // namespace ringar::test
