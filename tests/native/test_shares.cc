// Weighted averages: shares, idle ranks, and what the control vector tells.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "check.h"
#include "engine/engine_instance.h"
#include "engine/reduce.h"
#include "ranks.h"
#include "requests.h"

namespace ringar::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Bytes bytes_of(const std::vector<float>& values) {
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<float> floats_of(const Bytes& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::string average_spec(int size, int key) {
  return "allreduce dtype=float32 op=sum postscale=" + std::to_string(1.0 / size) +
         " shares=" + std::to_string(key) + " name=g";
}

struct Result {
  std::vector<float> control, array;
};

// One weighted average of an array of two elements.
Result run(Engine& engine, const std::string& spec, const std::vector<float>& control,
           const std::vector<float>& array, Output where = Output::kApart) {
  TestRequest request(spec);
  for (const auto& values : {control, array})
    request.add(bytes_of(values), {static_cast<int64_t>(values.size())}, where,
                values.size() * sizeof(float));
  EXPECT_OK(engine.run(request));
  if (where == Output::kApart) EXPECT(request.input_is_untouched(1));
  return {floats_of(request.output(0)), floats_of(request.output(1))};
}

void expect_near(float value, float expected) {
  EXPECT(std::fabs(value - expected) <= 1e-6f * std::fabs(expected));
}

// Ranks with 10, 20, ... rows: the first collective agrees on what counts as whole.
TEST(shares_weigh_each_rank_by_its_rows) {
  on_threads(3, [](Rank& me) {
    const auto engine = me.start();
    const auto weight = static_cast<float>(me.rank + 1);
    for (const Output where : {Output::kApart, Output::kInPlace}) {
      const Result uneven =
          run(*engine, average_spec(3, 7), {10 * weight, 0, 1}, {weight, -2 * weight}, where);
      expect_near(uneven.array[0], (1 * 1 + 2 * 2 + 3 * 3) / 6.0f);
      expect_near(uneven.array[1], -2 * (1 * 1 + 2 * 2 + 3 * 3) / 6.0f);
      expect_near(uneven.control[0], 3 * weight / 6);
      EXPECT_EQ(uneven.control[1], 0.0f);
    }
    EXPECT_EQ(engine->shares().steps.load(), 2);
    engine->shares().begin_training();
    // Equal numbers, and ranks that say nothing, give the bits of a plain average.
    for (const float rows : {20.0f, -1.0f}) {
      const Result even = run(*engine, average_spec(3, 7), {rows, 0, 0}, {weight / 3, 0.1f});
      TestRequest plain("allreduce dtype=float32 op=sum postscale=" + std::to_string(1.0 / 3) +
                        " name=g");
      plain.add(bytes_of({weight / 3, 0.1f}), {2}, Output::kApart, 2 * sizeof(float));
      EXPECT_OK(engine->run(plain));
      EXPECT(floats_of(plain.output(0)) == even.array);
      EXPECT_EQ(even.control[0], 1.0f);
    }
  });
}

TEST(shares_leave_out_a_rank_without_data) {
  on_threads(2, [](Rank& me) {
    const auto engine = me.start();
    const bool idle = me.rank == 1;
    run(*engine, average_spec(2, 1), {8, 0, 1}, {1, 1});
    const std::vector<float> array =
        idle ? std::vector<float>{kNaN, kNaN} : std::vector<float>{3, 4};
    for (const float rows : {8.0f, -1.0f}) {
      const Result average = run(*engine, average_spec(2, 1),
                                 {idle ? std::min(rows, 0.0f) : rows, idle ? 1.0f : 0, 1}, array);
      EXPECT(average.array == (std::vector<float>{3, 4}));
      EXPECT(average.control == (std::vector<float>{idle ? 0.0f : 2, 1, 0}));
    }
    // A sum has no shares.
    const Result sum = run(*engine, "allreduce dtype=float32 op=sum shares=0 name=g",
                           {-1, idle ? 1.0f : 0, 1}, array);
    EXPECT(sum.array == (std::vector<float>{3, 4}));
    // All idle: zeros, and a number that tells it.
    const Result nobody = run(*engine, average_spec(2, 1), {0, 1, 1}, array);
    EXPECT(nobody.array == (std::vector<float>{0, 0}));
    EXPECT_EQ(nobody.control[1], 2.0f);
  });
}

TEST(shares_carry_the_wish_to_stop) {
  on_threads(2, [](Rank& me) {
    const auto engine = me.start();
    run(*engine, average_spec(2, 1), {8, 0, 1}, {1, 1});
    EXPECT(!engine->shares().stop_was_seen.load());
    engine->shares().asks_to_stop.store(me.rank == 1);
    EXPECT_EQ(run(*engine, average_spec(2, 1), {8, 0, 1}, {1, 1}).control[2], 1.0f);
    EXPECT(engine->shares().stop_was_seen.load());
    engine->shares().begin_training();
    EXPECT_EQ(run(*engine, average_spec(2, 1), {8, 0, 1}, {1, 1}).control[2], 0.0f);
    EXPECT(!engine->shares().stop_was_seen.load());
  });
}

TEST(shares_serve_every_floating_dtype) {
  for (const char* dtype : {"float16", "bfloat16", "float64"})
    on_threads(2, [dtype](Rank& me) {
      const auto engine = me.start();
      const std::string spec =
          std::string("allreduce dtype=") + dtype + " op=sum postscale=0.5 shares=3 name=g";
      TestRequest request(spec);
      const auto add = [&](const std::vector<double>& values) {
        Bytes bytes(values.size() * request.element_size());
        for (size_t i = 0; i < values.size(); ++i) {
          std::byte* to = bytes.data() + i * request.element_size();
          const auto fp32 = static_cast<float>(values[i]);
          if (request.spec.dtype == DataType::kFloat64)
            std::memcpy(to, &values[i], sizeof(double));
          else
            convert(DataType::kFloat32, request.spec.dtype,
                    reinterpret_cast<const std::byte*>(&fp32), to, 1);
        }
        request.add(bytes, {static_cast<int64_t>(values.size())}, Output::kApart, bytes.size());
      };
      // No numbers of bfloat16: beside narrow arrays the control vector has the bytes of floats.
      const double rows = me.rank == 0 ? 257 : 771;
      if (request.element_size() < sizeof(float)) {
        const Bytes control = bytes_of({static_cast<float>(rows), 0, 1});
        request.add(control, {6}, Output::kApart, control.size());
      } else {
        add({rows, 0, 1});
      }
      add({me.rank == 0 ? 1.0 : 5.0});
      EXPECT_OK(engine->run(request));
      const Bytes output = request.output(1);
      float mean = 0;
      if (request.spec.dtype == DataType::kFloat64) {
        double fp64 = 0;
        std::memcpy(&fp64, output.data(), sizeof fp64);
        mean = static_cast<float>(fp64);
      } else
        convert(request.spec.dtype, DataType::kFloat32, output.data(),
                reinterpret_cast<std::byte*>(&mean), 1);
      EXPECT(std::fabs(mean - 4.0f) <= 0.04f);  // (257 * 1 + 771 * 5) / 1028
    });
}

TEST(shares_refuse_what_is_no_average) {
  on_threads(2, [](Rank& me) {
    const auto engine = me.start();
    for (const char* spec : {"allreduce dtype=float32 op=max shares=1 name=g",
                             "allreduce dtype=int32 op=sum shares=1 name=g"}) {
      TestRequest request(spec);
      request.add(bytes_of({1, 2, 3}), {3}, Output::kApart, 3 * sizeof(float));
      const Status status = engine->run(request);
      EXPECT_EQ(status.code(), RINGAR_MISMATCH);
      EXPECT_CONTAINS(status.message(), "for a weighted average");
    }
  });
}

}  // namespace
}  // namespace ringar::test
