// Ranks that die, stop, leave or come late, at every step of every collective. The others must know
// at once who it was, and end cleanly.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "check.h"
#include "ranks.h"
#include "requests.h"

namespace ringar::test {
namespace {

constexpr size_t kBytes = 3'400'000;  // eight blocks of three slices, and a rest

// Memory of which the bytes from `limit` on cannot be touched: who does dies on the spot, in the
// middle of whatever it was doing.
class Cliff {
 public:
  Cliff(size_t bytes, size_t limit) : bytes_(pages(bytes)) {
    memory_ = static_cast<std::byte*>(
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT(memory_ != MAP_FAILED);
    if (limit < bytes)
      mprotect(memory_ + limit / 4096 * 4096, bytes_ - limit / 4096 * 4096, PROT_NONE);
    struct sigaction die{};
    die.sa_handler = [](int) { kill(getpid(), SIGKILL); };
    sigaction(SIGSEGV, &die, nullptr);
  }
  ~Cliff() { munmap(memory_, bytes_); }
  Cliff(const Cliff&) = delete;
  Cliff& operator=(const Cliff&) = delete;

  std::byte* data() const { return memory_; }

 private:
  static size_t pages(size_t bytes) { return (bytes + 4096) / 4096 * 4096; }
  size_t bytes_;
  std::byte* memory_;
};

struct Death {
  const char* collective;
  size_t bytes;
  size_t read_limit, write_limit;  // of the victim
  int victim;
};

// Bytes of the victim's output, which for these equal sizes all ranks share.
size_t output_bytes(const Death& death, int size) {
  const std::string collective = death.collective;
  if (collective == "allgather") return death.bytes * static_cast<size_t>(size);
  if (collective == "reducescatter") return death.bytes / static_cast<size_t>(size) + 1;
  return death.bytes;
}

// One collective on cliffs. Memory that is asked for, or not, is the same.
class OnCliffs : public TestRequest {
 public:
  OnCliffs(const Death& death, int size, bool victim)
      : TestRequest(std::string(death.collective) + " dtype=uint8 op=sum root=1 name=fatal"),
        input_(death.bytes, victim ? death.read_limit : death.bytes),
        output_(output_bytes(death, size), victim ? death.write_limit : SIZE_MAX) {
    Tensor& tensor = tensors.emplace_back();
    tensor.input = input_.data();
    tensor.shape.append(static_cast<int64_t>(death.bytes));
    if (!rows_may_differ(spec.collective)) tensor.output = output_.data();
  }
  std::byte* allocate(size_t, int64_t) override { return output_.data(); }

 private:
  Cliff input_, output_;
};

void expect_loss_of(int victim, const Status& status, const Rank& me) {
  EXPECT_EQ(status.code(), RINGAR_PEER_LOST);
  EXPECT_CONTAINS(status.message(), "rank " + std::to_string(me.rank) + " | ");
  EXPECT_CONTAINS(status.message(), "rank " + std::to_string(victim) + " has died");
}

void survive(const Rank& me, const Death& death) {
  const auto engine = me.start();
  TestRequest warm_up(allreduce_spec("before"));
  add_ones(warm_up, me.rank, 100);
  EXPECT_OK(engine->run(warm_up));

  OnCliffs request(death, me.size, me.rank == death.victim);
  const auto start = std::chrono::steady_clock::now();
  const Status status = engine->run(request);
  EXPECT(me.rank != death.victim);  // dead by now
  // Survivors may be done with this collective before the victim is; then the next one fails.
  TestRequest barrier("barrier name=after");
  const Status next = engine->run(barrier);
  EXPECT(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  if (!status.ok()) expect_loss_of(death.victim, status, me);
  expect_loss_of(death.victim, next, me);
  // Once broken, it stays so, with the same words.
  const Status again = engine->run(barrier);
  EXPECT_EQ(again.message(), next.message());
}

void check_death(const Death& death) {
  constexpr int kRanks = 3;
  const auto all = endings(kRanks, [&](Rank& me) { survive(me, death); });
  for (int r = 0; r < kRanks; ++r) {
    const Ending& ending = all[static_cast<size_t>(r)];
    const bool right = r == death.victim ? ending.signal == SIGKILL : ending.code == 0;
    if (!right)
      fail(__FILE__, __LINE__,
           std::string(death.collective) + " of " + std::to_string(death.bytes) + ", victim " +
               std::to_string(death.victim) + " reads " + std::to_string(death.read_limit) +
               " and writes " + std::to_string(death.write_limit) + " bytes: rank " +
               std::to_string(r) + " ended with " + std::to_string(ending.code) + ", signal " +
               std::to_string(ending.signal));
  }
}

void check_deaths(const char* collective) {
  constexpr size_t kAll = SIZE_MAX;
  for (int victim : {1, 2})
    for (size_t at : {size_t{0}, kBytes / 6, kBytes / 3 + 4096, kBytes * 2 / 3, kBytes - 4096}) {
      const bool sends = std::strcmp(collective, "broadcast") != 0 || victim == 1;
      const bool receives = std::strcmp(collective, "broadcast") != 0 || victim == 2;
      if (sends) check_death({collective, kBytes, at, kAll, victim});
      // Of a reduce-scatter a rank writes a third.
      const size_t least = std::strcmp(collective, "reducescatter") == 0 ? at / 4 : at;
      if (receives) check_death({collective, kBytes, kBytes, least, victim});
    }
}

TEST(faults_death_in_every_phase_of_allreduce) {
  check_deaths("allreduce");
}
TEST(faults_death_in_every_phase_of_reducescatter) {
  check_deaths("reducescatter");
}
TEST(faults_death_in_every_phase_of_allgather) {
  check_deaths("allgather");
}
TEST(faults_death_in_every_phase_of_broadcast) {
  check_deaths("broadcast");
}
TEST(faults_death_in_every_phase_of_alltoall) {
  check_deaths("alltoall");
}

TEST(faults_death_in_small_collectives) {
  for (const char* collective : {"allreduce", "allgather", "alltoall", "reducescatter"}) {
    check_death({collective, 4096, 0, SIZE_MAX, 0});
    check_death({collective, 4096, 4096, 0, 2});
  }
}

// What a rank printed to stderr while this lives.
class Captured {
 public:
  Captured() : saved_(dup(STDERR_FILENO)), file_(memfd_create("stderr", 0)) {
    dup2(file_, STDERR_FILENO);
  }
  std::string text() const {
    std::string all(static_cast<size_t>(lseek(file_, 0, SEEK_END)), '\0');
    EXPECT_EQ(pread(file_, all.data(), all.size(), 0), static_cast<ssize_t>(all.size()));
    return all;
  }
  ~Captured() {
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    close(file_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

 private:
  int saved_, file_;
};

TEST(faults_a_late_rank_is_named_and_then_all_is_well) {
  on_processes(3, [](Rank& me) {
    me.config.stall_warning = 0.3;
    const auto engine = me.start();
    const Captured captured;
    int turn = 0;
    for (const std::string name : {"first", "second"}) {
      // The late one comes when the others have told of it, however busy the machine is.
      std::thread listener;
      if (me.rank == 2)
        me.await(turn, 2);
      else
        listener = std::thread([&, turn] {
          const std::string warning = name + "\" of float32";
          for (int i = 0; i < 1500 && captured.text().find(warning) == std::string::npos; ++i)
            nap(10);
          me.add(turn);
        });
      TestRequest request(allreduce_spec(name));
      add_ones(request, me.rank, 10);
      const Status status = engine->run(request);
      if (me.rank != 2) listener.join();
      EXPECT_OK(status);
      expect_sum_of_ranks(request, 3);
      ++turn;
    }
    me.meet(2);
    if (me.rank == 2) return EXPECT_EQ(captured.text(), "");
    const std::string who = "rank " + std::to_string(me.rank) + " | allreduce ";
    EXPECT_CONTAINS(captured.text(), who + "\"first\" of float32[10], op=sum: has waited ");
    EXPECT_CONTAINS(captured.text(), "s for rank 2\n");
    EXPECT_CONTAINS(captured.text(), "for rank 2 (last seen in allreduce \"first\" of float32[10]");
  });
}

// The same with threads, where the sanitizer sees what a warning reads of the late one's signature.
TEST(faults_a_late_rank_among_threads) {
  const Captured captured;
  on_threads(3, [&](Rank& me) {
    me.config.stall_warning = 0.03;
    const auto engine = me.start();
    for (int i = 0; i < 6; ++i) {
      // The late one comes when the others have told of it, however busy the machine is.
      const std::string warning = "rank " + std::to_string(me.rank) +
                                  " (last seen in allreduce \"turn " + std::to_string(i - 1) +
                                  "\" of float32[";
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (i > 0 && me.rank == i % 3 && captured.text().find(warning) == std::string::npos) {
        EXPECT(std::chrono::steady_clock::now() < end);
        nap(1);
      }
      TestRequest request(allreduce_spec("turn " + std::to_string(i)));
      add_ones(request, me.rank, i % 2 ? 10 : 100'000);
      EXPECT_OK(engine->run(request));
    }
  });
}

TEST(faults_a_rank_that_misses_the_deadline) {
  on_processes(3, [](Rank& me) {
    me.config.deadline = 0.3;
    const auto engine = me.start();
    if (me.rank == 1) me.await(0, 2);
    TestRequest request(allreduce_spec("late")), barrier("barrier name=next");
    add_ones(request, me.rank, 10);
    Status status = engine->run(request);
    // All that the late one needs is there: it may get its result, but not another one.
    if (me.rank == 1 && status.ok()) status = engine->run(barrier);
    me.add(0);
    EXPECT_CONTAINS(status.message(), "rank " + std::to_string(me.rank) + " | ");
    // Of the two that wait, one may see that the other has given up before its own deadline.
    EXPECT_CONTAINS(status.message(), "within the deadline of 0.3 s, still waiting for rank 1");
    EXPECT_CONTAINS(status.message(), "raise the deadline");
    if (me.rank == 1) {
      EXPECT_EQ(status.code(), RINGAR_PEER_LOST);
      EXPECT_CONTAINS(status.message(), "has given up: rank ");
    }
    me.meet(1);
  });
}

// Stopped as by SIGSTOP or a debugger: its process is there, so only the deadline tells.
TEST(faults_a_stopped_rank) {
  on_processes(3, [](Rank& me) {
    me.config.deadline = 2;  // until when rank 1 must have stopped
    const auto engine = me.start();
    if (me.rank == 1) me.notes[5].store(getpid());
    TestRequest request("allgather dtype=uint8 name=stopped");
    request.add(Bytes(kBytes), {static_cast<int64_t>(kBytes)}, Output::kAllocated, 0);
    if (me.rank == 1) request.on_allocate = [] { raise(SIGSTOP); };
    const Status status = engine->run(request);
    if (me.rank == 0) {
      EXPECT_CONTAINS(status.message(), "waiting for rank 1 (stopped in the middle of it)");
      me.await(0, 1);
      kill(me.notes[5].load(), SIGCONT);
    }
    if (me.rank == 2) {
      EXPECT_CONTAINS(status.message(), "waiting for rank 1");
      me.add(0);
    }
    if (me.rank == 1) {
      EXPECT_EQ(status.code(), RINGAR_PEER_LOST);
      EXPECT_CONTAINS(status.message(), "has given up");
    }
    me.meet(1);
  });
}

TEST(faults_a_rank_that_leaves) {
  on_threads(3, [](Rank& me) {
    const auto engine = me.start();
    if (me.rank == 2) return;
    TestRequest request(allreduce_spec("alone"));
    add_ones(request, me.rank, 10);
    const Status status = engine->run(request);
    EXPECT_EQ(status.code(), RINGAR_PEER_LOST);
    EXPECT_CONTAINS(status.message(), "rank 2 has left: it called ringar.shutdown()");
    me.add(0);
    me.await(0, 2);
  });
}

TEST(faults_a_rank_without_memory_for_its_output) {
  on_processes(2, [](Rank& me) {
    const auto engine = me.start();
    TestRequest request("allgather dtype=float32 name=big");
    request.add(Bytes(400), {10, 10}, Output::kAllocated, 0);
    request.refuse_memory = me.rank == 1;
    const Status status = engine->run(request);
    if (me.rank == 1) {
      EXPECT_EQ(status.code(), RINGAR_OUT_OF_MEMORY);
      EXPECT_CONTAINS(status.message(),
                      "rank 1 | allgather \"big\" of float32[?,10]: expected memory");
      EXPECT_CONTAINS(status.message(), "800 bytes");
      return me.await(0, 1);
    }
    TestRequest barrier("barrier name=");
    const Status next = status.ok() ? engine->run(barrier) : status;
    EXPECT_EQ(next.code(), RINGAR_PEER_LOST);
    EXPECT_CONTAINS(next.message(), "rank 1 has given up: rank 1 | allgather \"big\"");
    me.add(0);
  });
}

// After a fault ringar can be started anew by those that are there.
TEST(faults_starting_again_after_one) {
  on_processes(2, [](Rank& me) {
    for (int round = 0; round < 3; ++round) {
      me.config.deadline = 0.2;
      const auto engine = me.start();
      if (me.rank == 1) me.await(round, 1);
      TestRequest barrier("barrier name=late"), next("barrier name=next");
      EXPECT(!engine->run(barrier).ok() || !engine->run(next).ok());
      if (me.rank == 0) me.add(round);
      me.meet(10 + round);
    }
    me.config.deadline = 20;
    const auto engine = me.start();
    TestRequest request(allreduce_spec("well"));
    add_ones(request, me.rank, 100'000);
    EXPECT_OK(engine->run(request));
    expect_sum_of_ranks(request, 2);
    me.meet(20);
  });
}

// A random death in the middle of a run of collectives, in all of its threads' states.
TEST(faults_death_at_any_moment) {
  for (int round = 0; round < 12; ++round) {
    const auto all = endings(3, [&](Rank& me) {
      const auto engine = me.start();
      std::thread killer;
      if (me.rank == round % 3)
        killer = std::thread([&] {
          std::this_thread::sleep_for(std::chrono::microseconds(500 + 1300 * round));
          kill(getpid(), SIGKILL);
        });
      for (;;) {
        TestRequest request(allreduce_spec("loop"));
        add_ones(request, me.rank, 100'000);
        const Status status = engine->run(request);
        if (!status.ok()) return expect_loss_of(round % 3, status, me);
      }
    });
    for (int r = 0; r < 3; ++r) {
      EXPECT_EQ(all[static_cast<size_t>(r)].signal, r == round % 3 ? SIGKILL : 0);
      EXPECT_EQ(all[static_cast<size_t>(r)].code, r == round % 3 ? -1 : 0);
    }
  }
}

}  // namespace
}  // namespace ringar::test
