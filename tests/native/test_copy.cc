// The copy into shared memory is a copy: every length and alignment, and no byte beyond.

#include <cstring>
#include <vector>

#include "check.h"
#include "engine/copy.h"
#include "requests.h"

namespace ringar::test {
namespace {

TEST(copy_to_shared_copies) {
  for (size_t bytes : {0, 1, 63, 64, 1000, 8191, 8192, 8193, 70'001})
    for (size_t from_offset : {0, 1, 16, 63})
      for (size_t to_offset : {0, 1, 16, 63}) {
        const Bytes from = random_bytes(DataType::kUint8, bytes + 64, bytes);
        Bytes to(bytes + 128, std::byte{0x5a}), expected = to;
        std::memcpy(expected.data() + to_offset, from.data() + from_offset, bytes);
        copy_to_shared(to.data() + to_offset, from.data() + from_offset, bytes);
        EXPECT(to == expected);
      }
}

}  // namespace
}  // namespace ringar::test
