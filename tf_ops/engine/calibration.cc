#include "engine/calibration.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <map>
#include <utility>

#include "engine/tuning.h"

namespace ringar {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSeconds = 0.6;  // and the pair that is under way
constexpr int kMostRounds = 12;
constexpr size_t kLeastRounds = 3;
constexpr double kGain = 0.97;  // less is noise
constexpr size_t kBytesOfAllRanks[] = {size_t{16} << 20, size_t{32} << 20, size_t{64} << 20,
                                       size_t{128} << 20};

constexpr double kSecondsBetweenHosts = 0.2;  // and what is under way
constexpr size_t kTurns = 5;
constexpr double kSecondsOfTurns = 0.05;  // of an array, unless one turn takes longer
// If halving and doubling take less than this part of a ring's time for the longest array measured,
// longer arrays use them, too: they send as many bytes.
constexpr double kByFar = 0.5;
// An array that takes so long is not all latency; several streams that gain less are noise.
constexpr double kSecondsOfStreams = 0.01;
constexpr double kGainOfStreams = 0.85;
// Shorter ones take recursive doubling, which needs no further message.
const std::vector<size_t> kShortBetweenHosts = {size_t{2} << 10, size_t{8} << 10, size_t{32} << 10,
                                                size_t{128} << 10};
const std::vector<size_t> kMiddleBetweenHosts = {size_t{32} << 10, size_t{128} << 10,
                                                 size_t{512} << 10, size_t{2} << 20};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Memory that is there from the start, or null.
class Pages {
 public:
  explicit Pages(size_t bytes)
      : bytes_(bytes),
        memory_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0)) {}
  ~Pages() {
    if (data()) munmap(memory_, bytes_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* data() const {
    return memory_ == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory_);
  }

 private:
  const size_t bytes_;
  void* const memory_;
};

class Allreduce : public InternalRequest {
 public:
  Allreduce(DataType dtype, ReduceOp op, const std::byte* input, std::byte* output, size_t bytes) {
    spec_.collective = Collective::kAllreduce;
    spec_.dtype = dtype;
    spec_.op = op;
    spec_.name = "calibration";
    Shape shape;
    shape.append(static_cast<int64_t>(bytes / size_of(dtype)));
    tensors.push_back({input, output, shape});
  }
};

// The largest of the ranks' numbers, each by itself.
template <size_t N>
Status agree(Communicator& ranks, double (&numbers)[N]) {
  auto* bytes = reinterpret_cast<std::byte*>(numbers);
  Allreduce largest(DataType::kFloat64, ReduceOp::kMax, bytes, bytes, sizeof numbers);
  return ranks.run(largest);
}

void read_lines(const std::byte* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64)
    (void)*static_cast<const volatile std::byte*>(from + at);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Calibration {
 public:
  explicit Calibration(Communicator& ranks) : ranks_(ranks) {
    for (size_t bytes : kBytesOfAllRanks)
      sizes_.push_back(bytes / static_cast<size_t>(ranks.size()) / 64 * 64);
    ratios_.resize(sizes_.size());
  }

  Status run(std::optional<size_t>* limit) {
    const auto pooled = ranks_.host().take_output(sizes_.back());  // where those of users lie, too
    const Pages input(sizes_.back()), apart(pooled ? 0 : sizes_.back());
    input_ = input.data();
    output_ = pooled ? pooled->data() : apart.data();
    const double forever = std::numeric_limits<double>::infinity();
    double memory[] = {input_ && output_ ? 0 : forever};  // without it on one rank, none measures
    RINGAR_RETURN_IF_ERROR(agree(ranks_, memory));
    for (int round = 0; round <= kMostRounds && memory[0] == 0 && !is_over_; ++round)
      for (size_t i = 0; i < sizes_.size() && !is_over_; ++i)
        RINGAR_RETURN_IF_ERROR(measure_pair(round, i));
    *limit = least_that_gains(sizes_, ratios_);
    return {};
  }

 private:
  Status measure_pair(int round, size_t i) {
    double numbers[3] = {};  // seconds, plain and past the caches; then of all until now
    for (int turn = 0; turn < 2; ++turn) {
      const int past = (round + turn) % 2;
      RINGAR_RETURN_IF_ERROR(measure(sizes_[i], past != 0, &numbers[past]));
    }
    numbers[2] = seconds_since(start_);
    RINGAR_RETURN_IF_ERROR(agree(ranks_, numbers));
    is_over_ = numbers[2] > kSeconds;
    if (round > 0) ratios_[i].push_back(numbers[1] / numbers[0]);
    return {};
  }

  Status measure(size_t bytes, bool past_caches, double* seconds) {
    ranks_.host().store_past_caches_from(past_caches ? 0 : kNever);
    Allreduce sum(DataType::kFloat32, ReduceOp::kSum, input_, output_, bytes);
    double together[1] = {};
    RINGAR_RETURN_IF_ERROR(agree(ranks_, together));
    const auto start = Clock::now();
    RINGAR_RETURN_IF_ERROR(ranks_.run(sum));
    read_lines(output_, bytes);
    *seconds = seconds_since(start);
    return {};
  }

  Communicator& ranks_;
  const Clock::time_point start_ = Clock::now();
  std::vector<size_t> sizes_;
  std::vector<std::vector<double>> ratios_;
  std::byte *input_ = nullptr, *output_ = nullptr;
  bool is_over_ = false;
};

// Up to which size an allreduce takes less time one way than another. `use` sets the size up to
// which later allreduces go the first way.
class Crossover {
 public:
  Crossover(Communicator& ranks, const std::vector<size_t>& sizes, std::function<void(size_t)> use)
      : ranks_(ranks),
        sizes_(sizes),
        use_(std::move(use)),
        array_(sizes.back()),
        sums_(sizes.back()) {}

  // Each step halves the sizes that are left; of two in the middle it measures the shorter one,
  // which takes less time.
  Status run(size_t most, size_t* limit) {
    RINGAR_RETURN_IF_ERROR(open());
    *limit = sizes_.front() / 2;
    // Below `low` the first way takes less time, from `high` on it does not.
    size_t low = 0, high = sizes_.size();
    while (high > 0 && sizes_[high - 1] > most) --high;
    for (bool is_over = false; low < high && !is_over;) {
      const size_t middle = (low + high - 1) / 2, bytes = sizes_[middle];
      double numbers[3] = {};  // seconds of the second way and of the first; of all until now
      RINGAR_RETURN_IF_ERROR(measure(bytes, numbers));
      took_[bytes] = {numbers[0], numbers[1]};
      is_over = numbers[2] > kSecondsBetweenHosts;
      if (numbers[1] > numbers[0]) {
        high = middle;
      } else {
        low = middle + 1;
        *limit = 2 * bytes;  // half way to the next size, which is four times as long
      }
    }
    return {};
  }

  // The time of the first way by that of the second, at the longest array that was measured.
  double ratio() const {
    if (took_.empty()) return 1;
    const auto [second, first] = took_.rbegin()->second;
    return first / second;
  }
  // An array that takes about so many seconds by the faster way, from 128 KiB to 8 MiB.
  size_t bytes_in(double seconds) const {
    const auto [bytes, took] = *took_.rbegin();
    const double linear = static_cast<double>(bytes) * seconds / fastest(took) / 64;
    return 64 * static_cast<size_t>(std::clamp(linear, 2048.0, 131072.0));
  }
  // The size of buckets by the times of the faster way at the shortest and the longest array; 0 if
  // there is one only.
  size_t bucket() const {
    if (took_.size() < 2) return 0;
    const auto [shorter, shorter_took] = *took_.begin();
    const auto [longer, longer_took] = *took_.rbegin();
    const double shorter_seconds = fastest(shorter_took), longer_seconds = fastest(longer_took);
    const double per_byte =
        (longer_seconds - shorter_seconds) / static_cast<double>(longer - shorter);
    if (per_byte <= 0) return 0;
    return bucket_for(std::max(0.0, shorter_seconds - per_byte * static_cast<double>(shorter)),
                      per_byte);
  }

 private:
  using Seconds = std::pair<double, double>;  // of the second way and of the first

  static double fastest(const Seconds& took) { return std::min(took.first, took.second); }

  // The first array opens connections.
  Status open() {
    for (const size_t way : {0, 1}) RINGAR_RETURN_IF_ERROR(reduce(sizes_.front(), way, nullptr));
    return {};
  }

  // Slow arrays spend their time on latencies, with little noise: one turn is enough.
  Status measure(size_t bytes, double (&numbers)[3]) {
    std::array<std::vector<double>, 2> times;
    for (size_t turn = 1, turns = 1; turn <= turns; ++turn) {
      for (const size_t way : {0, 1}) RINGAR_RETURN_IF_ERROR(reduce(bytes, way, &times[way]));
      if (turn != 1 && turn != turns) continue;
      numbers[0] = median(times[0]);
      numbers[1] = median(times[1]);
      numbers[2] = seconds_since(start_);
      RINGAR_RETURN_IF_ERROR(agree(ranks_, numbers));
      const double in_time = kSecondsOfTurns / (numbers[0] + numbers[1]);
      if (turn == 1) turns = static_cast<size_t>(std::clamp<double>(in_time, 1, kTurns));
    }
    return {};
  }

  Status reduce(size_t bytes, size_t way, std::vector<double>* times) {
    use_(way == 0 ? 0 : bytes);
    Allreduce sum(DataType::kFloat32, ReduceOp::kSum, array_.data(), sums_.data(), bytes);
    const auto before = Clock::now();
    RINGAR_RETURN_IF_ERROR(ranks_.run(sum));
    if (times) times->push_back(seconds_since(before));
    return {};
  }

  Communicator& ranks_;
  const std::vector<size_t>& sizes_;
  const std::function<void(size_t)> use_;
  const Clock::time_point start_ = Clock::now();
  std::vector<std::byte> array_, sums_;
  std::map<size_t, Seconds> took_;  // by bytes
};

}  // namespace

Status calibrate(Communicator& ranks, std::optional<size_t>* limit) {
  return Calibration(ranks).run(limit);
}

Status calibrate_between_hosts(Communicator& ranks,
                               const std::function<void(const WaysBetweenHosts&)>& use,
                               WaysBetweenHosts* ways) {
  const bool has_middle = ranks.hosts() >= World::kLeastForHalvingDoubling;
  const size_t middle = has_middle ? kNever : 0;
  Crossover to_middle(ranks, kShortBetweenHosts, [&](size_t bytes) { use({bytes, middle}); });
  RINGAR_RETURN_IF_ERROR(to_middle.run(ranks.handshake_bytes(), &ways->recursive_doubling));
  if (has_middle) {
    Crossover to_ring(ranks, kMiddleBetweenHosts, [&](size_t bytes) { use({0, bytes}); });
    RINGAR_RETURN_IF_ERROR(to_ring.run(kNever, &ways->halving_doubling));
    if (to_ring.ratio() < kByFar) ways->halving_doubling = kNever;
    ways->bucket = to_ring.bucket();
  }
  const std::vector<size_t> size = {to_middle.bytes_in(kSecondsOfStreams)};
  Crossover to_streams(ranks, size, [&](size_t bytes) {
    ways->has_streams = bytes > 0;
    use(*ways);
  });
  size_t most = 0;
  RINGAR_RETURN_IF_ERROR(to_streams.run(kNever, &most));
  ways->has_streams = to_streams.ratio() < kGainOfStreams;
  use(*ways);
  return {};
}

size_t bucket_for(double fixed, double per_byte) {
  constexpr size_t kLeast = size_t{8} << 20, kMost = size_t{64} << 20;
  constexpr double kRate = 0.9;
  const auto rate = [&](size_t bytes) {
    return static_cast<double>(bytes) / (fixed + per_byte * static_cast<double>(bytes));
  };
  size_t bytes = kLeast;
  while (bytes < kMost && rate(bytes) < kRate * rate(kMost)) bytes *= 2;
  return bytes;
}

std::optional<size_t> least_that_gains(const std::vector<size_t>& sizes,
                                       const std::vector<std::vector<double>>& ratios) {
  for (const std::vector<double>& rounds : ratios)
    if (rounds.size() < kLeastRounds) return std::nullopt;
  size_t least = kNever;
  for (size_t i = sizes.size(); i-- > 0 && median(ratios[i]) < kGain;) least = sizes[i];
  return least;
}

}  // namespace ringar
