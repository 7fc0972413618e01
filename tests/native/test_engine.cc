// The queue: order, callers that wait, and the end.

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>

#include "check.h"
#include "engine/engine_instance.h"
#include "ranks.h"
#include "requests.h"

namespace ringar::test {
namespace {

ringar_config config_of_one() {
  ringar_config config{};
  config.size = config.local_size = config.cross_size = 1;
  config.segment_fd = -1;
  config.start_timeout = config.deadline = 20;
  config.stall_warning = 10;
  return config;
}

std::unique_ptr<TestRequest> ones(const std::string& name, int rank, size_t elements) {
  auto request = std::make_unique<TestRequest>(allreduce_spec(name));
  add_ones(*request, rank, elements);
  return request;
}

TEST(engine_keeps_the_order_of_each_thread) {
  Engine engine(config_of_one());
  EXPECT_OK(engine.start());
  std::vector<std::thread> threads;
  std::atomic<int> disorder{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::vector<std::unique_ptr<TestRequest>> requests;
      for (int i = 0; i < 100; ++i) {
        requests.push_back(ones("x", t, (i + t) % 7 == 0 ? kLong : kShort));
        engine.submit(requests.back().get());
        if (i % 50 != 49) continue;
        TestRequest barrier("barrier name=");
        if (!engine.run(barrier).ok()) ++disorder;
        if (requests.back()->place() < 0) ++disorder;  // done before what came after it
      }
      int last = -1;
      for (auto& request : requests) {
        if (!request->wait().ok() || request->place() <= last) ++disorder;
        last = request->place();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(disorder.load(), 0);
}

// rank 0's engine thread is busy, since rank 1 does not come, when run() is called.
TEST(engine_makes_a_caller_wait_for_what_came_before) {
  on_threads(2, [](Rank& me) {
    const auto engine = me.start();
    if (me.rank == 1) {
      me.await(0, 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    auto first = ones("first", me.rank, kLong), second = ones("second", me.rank, kShort);
    engine->submit(first.get());
    engine->submit(second.get());
    me.add(0);
    auto third = ones("third", me.rank, kShort);
    EXPECT_OK(engine->run(*third));
    EXPECT(first->place() >= 0 && second->place() > first->place());
    for (auto* request : {first.get(), second.get()}) {
      EXPECT_OK(request->wait());
      expect_sum_of_ranks(*request, me.size);
    }
    expect_sum_of_ranks(*third, me.size);
  });
}

// What completion sets off may issue the next collective at once, from the engine's thread.
class ChainOfRequests : public TestRequest {
 public:
  ChainOfRequests(Engine& engine, int left, std::atomic<int>& outcome)
      : TestRequest(allreduce_spec("chain")), engine_(engine), left_(left), outcome_(outcome) {
    add_ones(*this, 0, left % 2 ? kShort : kLong);
  }
  void complete(const Status& status) override {
    if (status.ok() && left_ > 0)
      engine_.submit(new ChainOfRequests(engine_, left_ - 1, outcome_));
    else
      outcome_.store(status.ok() ? 1 : -1);
    delete this;
  }

 private:
  Engine& engine_;
  const int left_;
  std::atomic<int>& outcome_;
};

TEST(engine_takes_requests_from_a_completion) {
  Engine engine(config_of_one());
  EXPECT_OK(engine.start());
  std::atomic<int> outcome{0};
  engine.submit(new ChainOfRequests(engine, 100, outcome));
  while (outcome.load() == 0) std::this_thread::yield();
  EXPECT_EQ(outcome.load(), 1);
}

TEST(engine_completes_pending_requests_when_it_ends) {
  on_threads(2, [](Rank& me) {
    std::vector<std::unique_ptr<TestRequest>> requests;
    auto engine = std::make_unique<Engine>(me.config);
    EXPECT_OK(engine->start());
    if (me.rank == 1) {
      me.await(0, 1);
      return;
    }
    for (int i = 0; i < 5; ++i) {
      requests.push_back(ones("x", 0, kLong));
      engine->submit(requests.back().get());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    engine.reset();
    const Status first = requests[0]->wait();
    EXPECT_EQ(first.code(), RINGAR_PEER_LOST);
    EXPECT_CONTAINS(first.message(), "this rank shut ringar down before rank 1");
    for (size_t i = 1; i < requests.size(); ++i) {
      const Status status = requests[i]->wait();
      EXPECT_EQ(status.code(), RINGAR_NOT_INITIALIZED);
      EXPECT_CONTAINS(status.message(), "rank 0 | ringar was shut down");
    }
    me.add(0);
  });
}

ringar_array array_of(const std::vector<float>& input, std::vector<float>* output,
                      const int64_t* dims) {
  return {input.data(), output->data(), 1, dims};
}

TEST(c_interface_before_init) {
  TestRequest request(allreduce_spec("x"));
  add_ones(request, 0, 1);
  EXPECT_EQ(ringar::run(request).code(), RINGAR_NOT_INITIALIZED);
  ringar::submit(&request);
  EXPECT_CONTAINS(request.wait().message(), "call ringar.init() before allreduce");
  EXPECT_EQ(ringar_run("barrier name=", nullptr, 0, nullptr, 0, nullptr, nullptr, nullptr),
            RINGAR_NOT_INITIALIZED);
  EXPECT_CONTAINS(std::string(ringar_last_error()), "call ringar.init() before barrier");
  int32_t id = 0;
  EXPECT_EQ(ringar_add_process_set(&id, 1, &id), RINGAR_NOT_INITIALIZED);
  EXPECT_EQ(ringar_remove_process_set(1), RINGAR_NOT_INITIALIZED);
  EXPECT_EQ(ringar_is_initialized(), 0);
  ringar_shutdown();
}

TEST(c_interface_runs_and_starts_again) {
  for (int round = 0; round < 3; ++round) {
    const ringar_config config = config_of_one();
    EXPECT_EQ(ringar_init(&config), RINGAR_OK);
    EXPECT_EQ(ringar_init(&config), RINGAR_OK);  // once more does nothing
    EXPECT_EQ(ringar_is_initialized(), 1);
    const std::vector<float> input{1, 2, 3};
    std::vector<float> output(3);
    const int64_t dims[] = {3};
    const ringar_array array = array_of(input, &output, dims);
    const char* spec = "allreduce dtype=float32 op=sum prescale=2 postscale=1 name=x";
    EXPECT_EQ(ringar_run(spec, &array, 1, nullptr, 0, nullptr, nullptr, nullptr), RINGAR_OK);
    EXPECT(output == (std::vector<float>{2, 4, 6}));
    EXPECT_EQ(
        ringar_run("allreduce dtype=text name=x", &array, 1, nullptr, 0, nullptr, nullptr, nullptr),
        RINGAR_MISMATCH);
    EXPECT_CONTAINS(std::string(ringar_last_error()), "dtype=text");
    ringar_shutdown();
    EXPECT_EQ(ringar_is_initialized(), 0);
  }
}

TEST(c_interface_runs_a_prepared_call_again_and_again) {
  std::vector<float> input{1, 2}, output(2);
  const int64_t dims[] = {2};
  const ringar_array array = array_of(input, &output, dims);
  EXPECT(ringar_prepare("allreduce dtype=text name=x", &array, 1) == nullptr);
  EXPECT_CONTAINS(std::string(ringar_last_error()), "dtype=text");
  ringar_call* call =
      ringar_prepare("allreduce dtype=float32 op=sum prescale=2 postscale=1 name=x", &array, 1);
  EXPECT(call != nullptr);
  EXPECT_EQ(ringar_run_prepared(call), RINGAR_NOT_INITIALIZED);
  const ringar_config config = config_of_one();
  EXPECT_EQ(ringar_init(&config), RINGAR_OK);
  for (float turn = 1; turn < 5; ++turn) {
    input[1] = turn;
    EXPECT_EQ(ringar_run_prepared(call), RINGAR_OK);
    EXPECT(output == (std::vector<float>{2, 2 * turn}));
    const std::vector<float> other{3, turn};
    std::vector<float> result(2);
    const void* const from = other.data();
    void* const to = result.data();
    EXPECT_EQ(ringar_run_again(call, -1, nullptr, &from, &to, nullptr), RINGAR_OK);
    EXPECT(result == (std::vector<float>{6, 2 * turn}));
  }
  ringar_shutdown();
  ringar_release(call);
}

// Outputs whose rows only the exchange tells, and none to be had for them.
TEST(c_interface_asks_for_memory) {
  const ringar_config config = config_of_one();
  EXPECT_EQ(ringar_init(&config), RINGAR_OK);
  const std::vector<float> input{1, 2, 3, 4};
  std::vector<float> output;
  const int64_t dims[] = {2, 2};
  const ringar_array array{input.data(), nullptr, 2, dims};
  const auto allocate = [](void* context, int32_t index, int64_t rows) -> void* {
    auto& out = *static_cast<std::vector<float>*>(context);
    out.resize(static_cast<size_t>(rows * 2));
    return index == 0 ? out.data() : nullptr;
  };
  int64_t received = 0;
  const char* spec = "allgather dtype=float32 name=x";
  EXPECT_EQ(ringar_run(spec, &array, 1, nullptr, 0, &received, allocate, &output), RINGAR_OK);
  EXPECT(output == input);
  EXPECT_EQ(received, 2);
  EXPECT_EQ(ringar_run(spec, &array, 1, nullptr, 0, nullptr, nullptr, nullptr),
            RINGAR_OUT_OF_MEMORY);
  ringar_shutdown();
}

// A thread waits for rank 1, which never comes, when another one shuts ringar down.
TEST(c_interface_shutdown_ends_a_caller_that_waits) {
  on_processes(2, [](Rank& me) {
    EXPECT_EQ(ringar_init(&me.config), RINGAR_OK);
    if (me.rank == 1) return me.await(0, 1);
    std::string error;
    std::thread waiting([&] {
      ringar_run("barrier name=x", nullptr, 0, nullptr, 0, nullptr, nullptr, nullptr);
      error = ringar_last_error();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const auto start = std::chrono::steady_clock::now();
    ringar_shutdown();
    waiting.join();
    EXPECT(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
    EXPECT_CONTAINS(error, "this rank shut ringar down before rank 1");
    me.add(0);
  });
}

// A child that is forked (by a data loader, say) is no rank: it can neither use the engine nor end
// it, and its own end means nothing.
TEST(c_interface_in_a_forked_child) {
  on_processes(2, [](Rank& me) {
    EXPECT_EQ(ringar_init(&me.config), RINGAR_OK);
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(20);
      const bool in = ringar_is_initialized();
      const int code =
          ringar_run("barrier name=x", nullptr, 0, nullptr, 0, nullptr, nullptr, nullptr);
      ringar_shutdown();
      _exit(!in && code == RINGAR_NOT_INITIALIZED ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
    for (int i = 0; i < 3; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(me.rank * 60));
      EXPECT_EQ(ringar_run("barrier name=x", nullptr, 0, nullptr, 0, nullptr, nullptr, nullptr),
                RINGAR_OK);
    }
    me.meet(0);
    ringar_shutdown();
  });
}

}  // namespace
}  // namespace ringar::test
