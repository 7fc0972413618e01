// Collectives that are announced before they come run in the order in which they were announced.

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "ranks.h"
#include "requests.h"

namespace ringar::test {
namespace {

constexpr size_t kElements = 1000;

std::unique_ptr<TestRequest> announced(const std::string& name, int rank, uint64_t ticket,
                                       int64_t step) {
  auto request = std::make_unique<TestRequest>(allreduce_spec(name));
  request->ticket = ticket;
  request->step = step;
  add_ones(*request, rank, kElements);
  return request;
}

// Each rank comes in another order; one that has no ticket takes the next one.
TEST(tickets_keep_the_order_of_announcement) {
  on_threads(2, [](Rank& me) {
    const auto engine = me.start();
    for (int64_t step = 1; step < 50; ++step) {
      std::vector<std::unique_ptr<TestRequest>> requests;
      for (const char* name : {"a", "b", "c"})
        requests.push_back(announced(name, me.rank, engine->draw_ticket(step), step));
      requests.push_back(announced("no ticket", me.rank, 0, step));
      engine->submit(requests[3].get());
      for (size_t i = 0; i < 3; ++i)
        engine->submit(requests[(i + static_cast<size_t>(me.rank + step)) % 3].get());
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_OK(requests[i]->wait());
        expect_sum_of_ranks(*requests[i], me.size);
        if (i > 0) EXPECT(requests[i]->place() > requests[i - 1]->place());
      }
    }
  });
}

// What was announced in the step ends with the collective that fails, whether it has come or not,
// on all ranks alike; the next step works.
TEST(tickets_end_with_their_step) {
  on_threads(2, [](Rank& me) {
    const auto engine = me.start();
    for (int64_t step = 1; step < 20; ++step) {
      const uint64_t first = engine->draw_ticket(step), second = engine->draw_ticket(step);
      const uint64_t third = engine->draw_ticket(step);
      auto early = announced("early", me.rank, second, step);
      if (me.rank == 0) engine->submit(early.get());
      auto mismatch = announced(me.rank ? "one" : "other", me.rank, first, step);
      engine->submit(mismatch.get());
      EXPECT_EQ(static_cast<int>(mismatch->wait().code()), RINGAR_MISMATCH);
      if (me.rank == 0) EXPECT_EQ(static_cast<int>(early->wait().code()), RINGAR_MISMATCH);
      auto straggler = announced("late", me.rank, third, step);
      engine->submit(straggler.get());
      EXPECT_EQ(static_cast<int>(straggler->wait().code()), RINGAR_MISMATCH);

      auto next = announced("next", me.rank, engine->draw_ticket(step + 100), step + 100);
      engine->submit(next.get());
      EXPECT_OK(next->wait());
      expect_sum_of_ranks(*next, me.size);
    }
  });
}

// A step that was given up has drawn tickets, and never comes.
TEST(tickets_of_a_step_that_was_given_up_hold_up_nobody) {
  on_threads(2, [](Rank& me) {
    const auto engine = me.start();
    const uint64_t given_up = engine->draw_ticket(1);
    auto next = announced("next", me.rank, engine->draw_ticket(2), 2);
    engine->submit(next.get());
    EXPECT_OK(next->wait());
    auto straggler = announced("late", me.rank, given_up, 1);
    engine->submit(straggler.get());
    EXPECT_CONTAINS(straggler->wait().message(), "one step of TensorFlow at a time");

    const uint64_t let_go = engine->draw_ticket(3);
    auto plain = announced("plain", me.rank, 0, -1);
    engine->submit(plain.get());
    engine->let_go(let_go);
    EXPECT_OK(plain->wait());
    expect_sum_of_ranks(*plain, me.size);
  });
}

// A collective of NumPy or compiled code in the middle of a step, which knows nothing of the step.
TEST(tickets_stay_when_a_caller_comes_without_one) {
  on_threads(2, [](Rank& me) {
    const auto engine = me.start();
    for (int64_t step = 1; step < 10; ++step) {
      auto first = announced("first", me.rank, engine->draw_ticket(step), step);
      auto inner = announced("inner", me.rank, 0, -1);
      Status status;
      std::thread caller([&] { status = engine->run(*inner); });
      std::this_thread::sleep_for(std::chrono::milliseconds(5 * me.rank));
      engine->submit(first.get());
      engine->let_go(first->ticket);  // as TensorFlow does with that of a collective that has come
      caller.join();
      EXPECT_OK(status);
      EXPECT_OK(first->wait());
      expect_sum_of_ranks(*first, me.size);
      expect_sum_of_ranks(*inner, me.size);
    }
  });
}

// The step goes on for a moment on some ranks.
TEST(tickets_of_a_failed_step_are_over_for_callers_that_wait) {
  on_threads(2, [](Rank& me) {
    const auto engine = me.start();
    for (int64_t step = 1; step < 10; ++step) {
      auto mismatch =
          announced(me.rank ? "one" : "other", me.rank, engine->draw_ticket(step), step);
      engine->submit(mismatch.get());
      EXPECT_EQ(static_cast<int>(mismatch->wait().code()), RINGAR_MISMATCH);
      me.meet(static_cast<int>(step));
      auto rest = announced("rest", me.rank, 0, step);
      if (me.rank == 0) EXPECT_EQ(engine->run(*rest).message(), mismatch->wait().message());
      auto next = announced("next", me.rank, 0, step + 100);
      EXPECT_OK(engine->run(*next));
      expect_sum_of_ranks(*next, me.size);
    }
  });
}

// Nobody tells that an op of TensorFlow has failed on whose result an announced collective waits.
TEST(tickets_that_are_held_end_at_the_deadline) {
  on_threads(2, [](Rank& me) {
    me.config.deadline = 2;  // which `next` must keep
    const auto engine = me.start();
    for (const bool waits : {false, true}) {
      const int64_t step = 1 + waits;
      engine->draw_ticket(step);
      auto request = announced("held", me.rank, engine->draw_ticket(step), step);
      auto plain = announced("plain", me.rank, 0, step);
      Status status;
      if (waits) {
        status = engine->run(*plain);
      } else {
        engine->submit(request.get());
        status = request->wait();
      }
      EXPECT_EQ(static_cast<int>(status.code()), RINGAR_DEADLINE);
      EXPECT_CONTAINS(status.message(), waits ? "allreduce \"plain\": expected the inputs"
                                              : "allreduce \"held\": expected the inputs");
    }
    auto next = announced("next", me.rank, engine->draw_ticket(9), 9);
    engine->submit(next.get());
    EXPECT_OK(next->wait());
    expect_sum_of_ranks(*next, me.size);
  });
}

// A collective that fails before it is submitted (no memory for its output, say) takes those of its
// step with it that wait for its turn.
TEST(tickets_end_with_a_collective_that_is_never_submitted) {
  on_threads(1, [](Rank& me) {
    const auto engine = me.start();
    constexpr int64_t kStep = -7;  // as TensorFlow numbers those of a function
    const uint64_t first = engine->draw_ticket(kStep);
    auto request = announced("held", me.rank, engine->draw_ticket(kStep), kStep);
    engine->submit(request.get());
    engine->end_step(kStep, {RINGAR_OUT_OF_MEMORY, "no memory"});
    EXPECT_CONTAINS(request->wait().message(), "no memory");
    auto straggler = announced("late", me.rank, first, kStep);
    engine->submit(straggler.get());
    EXPECT_CONTAINS(straggler->wait().message(), "no memory");
  });
}

TEST(tickets_end_with_the_engine) {
  on_threads(2, [](Rank& me) {
    const auto engine = me.start();
    engine->draw_ticket(1);
    auto request = announced("held", me.rank, engine->draw_ticket(1), 1);
    engine->submit(request.get());
    engine->stop();
    EXPECT_CONTAINS(request->wait().message(), "shut down");
  });
}

}  // namespace
}  // namespace ringar::test
