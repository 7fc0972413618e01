// Results past the caches: the same bits, the same choice on all ranks, and what the choice is.

#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>

#include "check.h"
#include "engine/calibration.h"
#include "engine/timeline.h"
#include "plans.h"
#include "ranks.h"
#include "requests.h"

namespace ringar::test {
namespace {

const std::vector<size_t> kSizes = {4 * kMiB, 8 * kMiB, 16 * kMiB};

constexpr DataType kDtypes[] = {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat64,
                                DataType::kInt8};

std::optional<size_t> chosen(double at_4, double at_8, double at_16) {
  // Two rounds of noise among five.
  const auto rounds = [](double ratio) {
    return std::vector<double>{ratio, 7.0, ratio, 0.1, ratio};
  };
  return least_that_gains(kSizes, {rounds(at_4), rounds(at_8), rounds(at_16)});
}

TEST(calibration_takes_the_least_size_from_which_on_all_gain) {
  EXPECT_EQ(chosen(0.9, 0.8, 0.7).value(), 4 * kMiB);
  EXPECT_EQ(chosen(1.1, 0.8, 0.7).value(), 8 * kMiB);
  EXPECT_EQ(chosen(1.1, 1.0, 0.7).value(), 16 * kMiB);
  EXPECT_EQ(chosen(0.9, 1.1, 0.7).value(), 16 * kMiB);  // what 4 MiB gain is an accident
  EXPECT_EQ(chosen(0.8, 0.8, 0.98).value(), kNever);
  EXPECT_EQ(chosen(1.2, 1.1, 1.0).value(), kNever);
}

TEST(calibration_takes_longer_buckets_where_latencies_are_long) {
  constexpr double kPerByte = 1e-9;
  EXPECT_EQ(bucket_for(0, kPerByte), 8 * kMiB);
  EXPECT_EQ(bucket_for(0.5e-3, kPerByte), 8 * kMiB);
  EXPECT_EQ(bucket_for(2e-3, kPerByte), 16 * kMiB);
  EXPECT_EQ(bucket_for(5e-3, kPerByte), 32 * kMiB);
  EXPECT_EQ(bucket_for(1, kPerByte), 64 * kMiB);
}

TEST(calibration_finds_nothing_in_too_few_rounds) {
  EXPECT(!least_that_gains(kSizes, {{0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}, {0.5, 0.5}}).has_value());
  EXPECT(!least_that_gains(kSizes, {{}, {}, {}}).has_value());
}

// Every size from which on they are stored so, of arrays in place, apart, and apart on one rank.
TEST(calibration_changes_no_bit) {
  on_threads(3, [](Rank& me) {
    me.config.past_caches_bytes = 1;
    const auto engine = me.start();
    EXPECT_EQ(engine->past_caches_bytes(), size_t{1});
    for (uint64_t seed = 0; seed < 8; ++seed) {
      Plan plan = random_plan(900 + seed, all_ranks(me.size), 0, 64);
      plan.collective = Collective::kAllreduce;
      plan.dtype = kDtypes[seed % 4];
      plan.op = seed % 2 ? ReduceOp::kSum : ReduceOp::kMax;
      plan.prescale = plan.postscale = 1;
      plan.twist = Twist::kNone;
      plan.where =
          seed % 3 == 0 || (seed % 3 == 1 && me.rank == 1) ? Output::kInPlace : Output::kApart;
      plan.tails = {{}, {}};
      plan.rows.assign(3, {7, 100'001});
      plan.splits.assign(3, {});
      run_plan(plan, me.rank, *engine);
    }
  });
}

TEST(calibration_of_rank_0_counts) {
  on_threads(3, [](Rank& me) {
    me.config.past_caches_bytes = me.rank == 0 ? 12345 : me.rank == 1 ? 0 : RINGAR_CALIBRATE;
    const auto engine = me.start();
    EXPECT_EQ(engine->past_caches_bytes(), size_t{12345});
    EXPECT(!engine->has_calibrated());
    int set = -1;
    EXPECT_OK(engine->add_process_set({0, 2}, &set));
    if (me.rank != 1)
      EXPECT(engine->process_set(set)->stores_past_caches(12345) &&
             !engine->process_set(set)->stores_past_caches(12344));
  });
}

TEST(calibration_is_overridden_by_the_environment) {
  on_processes(2, [](Rank& me) {
    setenv("RINGAR_TUNING", "past=4096", 1);
    me.config.past_caches_bytes = 8192;
    const auto engine = me.start();
    EXPECT_EQ(engine->past_caches_bytes(), size_t{4096});
  });
}

// With results of one choice after the other on the way, and collectives as ever afterwards.
TEST(calibration_is_the_same_on_all_ranks) {
  for (int size : {2, 3})
    on_processes(size, [](Rank& me) {
      me.config.past_caches_bytes = me.rank == 0 ? RINGAR_CALIBRATE : 0;
      const auto engine = me.start();
      // Ranks that share cores, or run under a sanitizer, may have too little time to find any.
      const size_t bytes = engine->past_caches_bytes();
      if (!engine->has_calibrated()) EXPECT_EQ(bytes, kNever);
      if (bytes != kNever)
        EXPECT(bytes >= 8 * kMiB / static_cast<size_t>(me.size) - 64 && bytes <= 16 * kMiB);
      me.notes[1 + me.rank].store(static_cast<int>(bytes / 64));
      me.meet(0);
      for (int r = 0; r < me.size; ++r)
        EXPECT_EQ(me.notes[1 + r].load(), static_cast<int>(bytes / 64));
      for (uint64_t seed = 0; seed < 4; ++seed)
        run_plan(random_plan(50 + seed, all_ranks(me.size), 0, 300'000), me.rank, *engine);
    });
}

// Messages take a while to hosts far apart, however short they are.
class FarLink : public Link {
 public:
  FarLink(std::unique_ptr<Link> near, double seconds, std::atomic<int>& sends)
      : near_(std::move(near)), seconds_(seconds), sends_(sends) {}

  Status send(int to, int tag, const std::byte* data, size_t bytes, int* handle) override {
    ++sends_;
    return begin(handle, 0, [&](int* near) { return near_->send(to, tag, data, bytes, near); });
  }
  Status receive(int from, int tag, std::byte* data, size_t bytes, Length length,
                 int* handle) override {
    return begin(handle, seconds_,
                 [&](int* near) { return near_->receive(from, tag, data, bytes, length, near); });
  }
  Status progress() override { return near_->progress(); }
  Status poll(int handle, bool* done, int* from) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    Transfer& transfer = transfers_[static_cast<size_t>(handle)];
    if (!transfer.come)
      transfer.status = near_->poll(transfer.near, &transfer.come, &transfer.from);
    const auto now = static_cast<double>(monotonic_ns());
    if (transfer.come && transfer.deadline == 0) transfer.deadline = now + transfer.seconds * 1e9;
    *done = transfer.come && now >= transfer.deadline;
    if (from) *from = transfer.from;
    return *done ? transfer.status : Status();
  }

 private:
  struct Transfer {
    double seconds;  // after it has come
    int near = -1, from = -1;
    bool come = false;
    double deadline = 0;
    Status status{};
  };

  template <typename Begin>
  Status begin(int* handle, double seconds, Begin begin) {
    const std::lock_guard<std::mutex> lock(mutex_);
    *handle = static_cast<int>(transfers_.size());
    return begin(&transfers_.emplace_back(Transfer{seconds}).near);
  }

  const std::unique_ptr<Link> near_;
  const double seconds_;
  std::atomic<int>& sends_;
  std::mutex mutex_;
  std::deque<Transfer> transfers_;
};

// The start of a job must not take a hundred times as long as a message.
TEST(calibration_between_hosts_far_apart_is_short) {
  std::atomic<int> sends{0};
  on_threads(Hosts{{1, 1}}, [&](Rank& me) {
    me.config.recursive_doubling_count = 0;  // nothing is known of the network
    Engine engine(me.config, std::make_unique<FarLink>(me.mesh->open(me.rank), 0.04, sends));
    EXPECT_OK(engine.start());
  });
  EXPECT(sends.load() < 160);
}

// One rank alone calibrates nothing, however it was asked.
TEST(calibration_needs_two_ranks) {
  on_threads(1, [](Rank& me) {
    me.config.past_caches_bytes = RINGAR_CALIBRATE;
    const auto engine = me.start();
    EXPECT(!engine->has_calibrated());
    EXPECT_EQ(engine->past_caches_bytes(), kNever);
  });
}

}  // namespace
}  // namespace ringar::test
