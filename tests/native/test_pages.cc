// Pages of 64 KiB, as some aarch64 kernels have them: mmap takes multiples of them alone
// (shared_mapping.h).

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "check.h"
#include "engine/tuning.h"
#include "plans.h"
#include "point_to_point.h"
#include "ranks.h"
#include "requests.h"

namespace ringar::test {
namespace {

constexpr int64_t kLargePage = 65536;

// In a process: the variable holds for all of it.
void pretend_large_pages() {
  setenv("RINGAR_TUNING", "page=65536", 1);
  EXPECT_EQ(page_bytes(), size_t{kLargePage});
}

TEST(pages_are_the_kernels) {
  EXPECT_EQ(page_bytes(), static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(page_up(1), page_bytes());
  EXPECT_EQ(page_up(page_bytes()), page_bytes());
}

TEST(pages_of_64_kib_refuse_an_offset_of_4_kib) {
  on_processes(1, [](Rank& me) {
    pretend_large_pages();
    EXPECT_EQ(ftruncate(me.config.segment_fd, 3 * kLargePage), 0);
    for (const int64_t offset : {int64_t{4096}, kLargePage, 2 * kLargePage - 4096}) {
      void* const memory = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, me.config.segment_fd, offset);
      EXPECT_EQ(memory != MAP_FAILED, offset == kLargePage);
    }
  });
}

TEST(pages_of_64_kib_for_collectives_in_process_sets) {
  on_processes(5, [](Rank& me) {
    pretend_large_pages();
    const auto engine = me.start();
    for (const std::vector<int>& members : {std::vector<int>{0, 1, 2}, {1, 2, 3, 4}, {4, 0}}) {
      int set = -1;
      EXPECT_OK(engine->add_process_set(members, &set));
      run_plan(random_plan(7, members, set, 300'000), me.rank, *engine);
    }
    for (uint64_t seed = 0; seed < 6; ++seed)
      run_plan(random_plan(seed, all_ranks(me.size), 0, 300'000), me.rank, *engine);
  });
}

// Of growing sizes, so that slots are replaced.
TEST(pages_of_64_kib_for_messages) {
  on_processes(3, [](Rank& me) {
    pretend_large_pages();
    const auto engine = me.start();
    for (int64_t n = 1000; n < 1'000'000; n *= 3) {
      if (me.rank == 2) continue;
      const int other = 1 - me.rank;
      Send send(other);
      Recv recv(other);
      EXPECT_OK(me.rank ? engine->run(recv.of({n})) : engine->run(send.with({n})));
      EXPECT_OK(me.rank ? engine->run(send.with({n})) : engine->run(recv.of({n})));
    }
    me.meet(0);
  });
}

}  // namespace
}  // namespace ringar::test
