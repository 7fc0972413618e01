#include "check.h"
#include "engine/way_of_copies.h"

namespace ringar::test {
namespace {

constexpr size_t kCopyBytes = 65536;

// Runs copies that take so many ticks each way; returns how many went past the caches.
int copies(WayOfCopies& way, int count, uint64_t ordinary, uint64_t past_caches) {
  int sum = 0;
  for (int i = 0; i < count; ++i) {
    const bool past = way.next_is_past_caches();
    way.took(past, kCopyBytes, past ? past_caches : ordinary);
    sum += past;
  }
  return sum;
}

TEST(way_of_copies_follows_the_machine) {
  WayOfCopies way;
  EXPECT(copies(way, 1000, 2000, 2000) < 15);  // both alike
  EXPECT(copies(way, 1000, 6000, 2000) < 10);  // not far enough
  EXPECT(copies(way, 1000, 30'000, 2000) > 950);
  EXPECT(copies(way, 1000, 2000, 2000) < 270);  // the next attempt tells
  EXPECT(copies(way, 1000, 2000, 2000) < 10);
}

TEST(way_of_copies_forgets_interruptions) {
  WayOfCopies way;
  int past_caches = 0;
  for (int i = 0; i < 1000; ++i) past_caches += copies(way, 1, i % 4 ? 2000 : 10'000'000, 1500);
  EXPECT(past_caches < 15);
}

// The first copies of a process make its pages.
TEST(way_of_copies_learns_soon) {
  WayOfCopies way;
  copies(way, 40, 100'000, 100'000);
  EXPECT(copies(way, 1000, 30'000, 2000) > 850);
}

}  // namespace
}  // namespace ringar::test
