// A step of training allocates nothing in the engine, once it has seen its largest collective.

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "check.h"
#include "ranks.h"
#include "requests.h"

namespace {
std::atomic<int64_t> allocations{0};
}

void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace ringar::test {
namespace {

// A request that can be used again, as the TensorFlow op's are.
class Repeated : public Request {
 public:
  Repeated(const Spec& spec, Bytes& memory, int arrays) : Request(spec) {
    const auto length = static_cast<int64_t>(memory.size() / size_t(arrays) / sizeof(float));
    for (int i = 0; i < arrays; ++i) {
      std::byte* at = memory.data() + static_cast<size_t>(i * length) * sizeof(float);
      tensors.push_back({at, at, Shape(1, [&](int) { return length; })});
    }
  }
  std::byte* allocate(size_t, int64_t) override { return nullptr; }
  void complete(const Status& status) override {
    status_ = status.code();
    done_.store(true);
  }
  void wait() {
    while (!done_.exchange(false)) std::this_thread::yield();
    EXPECT_EQ(status_, RINGAR_OK);
  }

 private:
  std::atomic<bool> done_{false};
  ringar_code status_ = RINGAR_OK;
};

TEST(engine_allocates_nothing_in_the_steady_state) {
  skip_if_emulated("waits last so long that ranks look after each other, which allocates");
  on_processes(2, [](Rank& me) {
    const auto engine = me.start();
    int place = 0;
    for (const char* text : {"allreduce dtype=float32 op=sum root=0 set=0 prescale=1 postscale=0.5 "
                             "name=a name that is longer than a short string holds by itself",
                             "broadcast dtype=float32 root=0 set=0 name=b"})
      for (size_t bytes : {64, 40'000, 1'200'000}) {
        Spec spec;
        EXPECT_OK(Spec::parse(text, &spec));
        Bytes memory(bytes, std::byte{0});
        Repeated first(spec, memory, 3), second(spec, memory, 3);
        // A long wait may allocate: where other programs have the cores, that is most of the steps.
        // Ranks go on until both have seen enough.
        int without = 0;
        bool is_enough = false;
        for (int round = 0; round < 5; ++round, place += 2) {
          for (int step = 0; step < 6 && !is_enough; ++step) {
            const int64_t before = allocations.load();
            engine->submit(&first);
            engine->submit(&second);
            first.wait();
            second.wait();
            EXPECT_OK(engine->run(first));
            without += allocations.load() == before;
          }
          if (without >= 3) me.add(place);
          me.meet(place + 1);
          is_enough = me.notes[place].load() == me.size;
        }
        EXPECT(without >= 3);
      }
  });
}

}  // namespace
}  // namespace ringar::test
