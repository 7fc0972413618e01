// Copies into shared memory and past the caches: every length and alignment, and no byte beyond.

#include <cstring>
#include <vector>

#include "check.h"
#include "engine/copy.h"
#include "numbers.h"

namespace ringar::test {
namespace {

void expect_copies(void (*copy)(std::byte* to, const std::byte* from, size_t bytes)) {
  for (size_t bytes : {0, 1, 63, 64, 65, 127, 1000, 8191, 8192, 8193, 70'001})
    for (size_t from_offset : {0, 1, 16, 63})
      for (size_t to_offset : {0, 1, 16, 63}) {
        const Bytes from = random_bytes(DataType::kUint8, bytes + 64, bytes);
        Bytes to(bytes + 128, std::byte{0x5a}), expected = to;
        std::memcpy(expected.data() + to_offset, from.data() + from_offset, bytes);
        copy(to.data() + to_offset, from.data() + from_offset, bytes);
        EXPECT(same_bytes(to, expected));
      }
}

TEST(copy_to_shared_copies) {
  expect_copies(copy_to_shared);
}

TEST(copy_past_caches_copies) {
  expect_copies(copy_past_caches);
}

}  // namespace
}  // namespace ringar::test
