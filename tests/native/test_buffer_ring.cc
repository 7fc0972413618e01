#include <algorithm>
#include <cstdint>
#include <random>
#include <set>

#include "check.h"
#include "engine/buffer_ring.h"

namespace ringar::test {
namespace {

// Of steps of all sizes in any order: short ones, long ones, and those between.
TEST(buffer_ring_keeps_two_steps_apart) {
  std::mt19937_64 random(1);
  for (const size_t longest : {size_t{8} << 10, size_t{96} << 10, size_t{512} << 10, 2 * kMiB})
    for (const size_t bytes : {size_t{0}, 2 * kMiB, 4 * kMiB / 3}) {
      BufferRing ring(longest, bytes);
      EXPECT(ring.bytes() % 64 == 0);
      for (int step = 0; step < 20'000; ++step) {
        const size_t magnitude = random() % 24;
        const size_t count = random() % ((size_t{1} << magnitude) + 1), last = ring.place();
        ring.advance(count);
        EXPECT_EQ(ring.last_place(), last);
        EXPECT(ring.place() % 64 == 0);
        EXPECT(ring.place() + longest <= ring.bytes());
        EXPECT(ring.place() + longest <= last || last + std::min(count, longest) <= ring.place());
      }
    }
}

size_t places_of(size_t bytes) {
  const size_t longest = size_t{256} << 10;
  BufferRing ring(longest, 2 * kMiB);
  std::set<size_t> places;
  for (int step = 0; step < 1000; ++step) {
    places.insert(ring.place());
    ring.advance(bytes);
  }
  return places.size();
}

TEST(buffer_ring_keeps_short_and_long_steps_in_cache) {
  EXPECT_EQ(places_of(0), size_t{2});
  EXPECT_EQ(places_of(4096), size_t{2});
  EXPECT_EQ(places_of(SIZE_MAX), size_t{4});
  EXPECT_EQ(places_of(size_t{64} << 10), (2 * kMiB - (size_t{256} << 10)) / (size_t{64} << 10) + 1);
}

}  // namespace
}  // namespace ringar::test
