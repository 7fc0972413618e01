// Where an allreduce works: the way that was measured to be several times faster.

#include <chrono>

#include "check.h"
#include "kernels/placement.h"

namespace ringar::test {
namespace {

using std::chrono::milliseconds;

// Calls that take so long in place and on copies; how many of the last 128 were made on copies.
int copies(Placement& placement, milliseconds in_place, milliseconds copied) {
  int count = 0;
  for (int call = 0; call < 256; ++call) {
    const bool copies = placement.copies();
    placement.took(copies ? copied : in_place, copies);
    if (call >= 128 && copies) ++count;
  }
  return count;
}

}  // namespace

TEST(placement_copies_where_that_is_several_times_faster) {
  Placement placement;
  EXPECT_EQ(copies(placement, milliseconds(3), milliseconds(2)), 2);
  // The cores become busy: the calls that try the other way find out.
  EXPECT_EQ(copies(placement, milliseconds(75), milliseconds(5)), 126);
  EXPECT_EQ(copies(placement, milliseconds(3), milliseconds(2)), 2);
}

TEST(placement_is_not_moved_by_one_pause) {
  Placement placement;
  copies(placement, milliseconds(3), milliseconds(2));
  placement.took(milliseconds(10'000), false);
  int count = 0;
  for (int call = 0; call < 63; ++call) {
    const bool copies = placement.copies();
    placement.took(milliseconds(copies ? 2 : 3), copies);
    count += copies ? 1 : 0;
  }
  EXPECT(count <= 1);
}

}  // namespace ringar::test
