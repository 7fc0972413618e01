// What a rank must send for each collective, by the formulas of engine/traffic.h.

#include "check.h"
#include "engine/traffic.h"
#include "ranks.h"
#include "requests.h"

namespace ringar::test {
namespace {

TEST(traffic_of_a_rank) {
  on_processes(3, [](Rank& me) {
    const auto engine = me.start();
    Traffic::instance().reset();
    for (int i = 0; i < 2; ++i) {
      TestRequest request(allreduce_spec("loss"));
      add_ones(request, me.rank, 300);
      EXPECT_OK(engine->run(request));
    }
    const std::string expected = "allreduce 2 3200 loss";
    EXPECT_EQ(Traffic::instance().text(), expected + '\0');
    Traffic::instance().reset();
    EXPECT_EQ(Traffic::instance().text(), std::string());
  });
}

}  // namespace
}  // namespace ringar::test
