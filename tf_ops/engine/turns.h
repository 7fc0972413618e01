// The order of collectives that are announced before their inputs are there.
//
// In a graph, TensorFlow would issue a long collective only after the one before it in the program
// has ended and a thread is free, tens of milliseconds later when all threads compute. Instead each
// draws a turn, in the order of the program and at once, and comes whenever its inputs are ready:
// the engine holds it back until those before it have come. A request without a turn takes the next
// one as it comes.
//
// A step that fails draws turns and never comes. Turns are therefore dropped with their step: when
// a collective of it fails, for all ranks alike, and when another step announces itself, since two
// steps that are under way at once have no order that all ranks could share. Where TensorFlow
// cannot end a step because a collective of it is held back behind a turn that never comes, the
// engine does so at its deadline.

#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "engine/request.h"

namespace ringar {

class Turns {
 public:
  bool empty() const { return waiting_.empty(); }

  uint64_t draw(int64_t step) {
    drop_absent_of_other_steps(step);
    waiting_.push_back({++last_, step, nullptr});
    return last_;
  }

  // False if the turn was dropped.
  bool come(Request* request) {
    for (Turn& turn : waiting_)
      if (turn.number == request->turn) {
        turn.request = request;
        ++come_;
        return true;
      }
    return false;
  }

  void come_without_turn(Request* request) {
    drop_absent_of_other_steps(request->step);
    waiting_.push_back({++last_, request->step, request});
    ++come_;
  }

  // The next request whose turn it is; null if it has not come.
  Request* next() {
    if (waiting_.empty() || !waiting_.front().request) return nullptr;
    Request* const request = waiting_.front().request;
    waiting_.pop_front();
    --come_;
    return request;
  }

  // The turn that has not come, while requests wait for it; 0: none.
  uint64_t awaited() const {
    return come_ > 0 && !waiting_.front().request ? waiting_.front().number : 0;
  }
  int64_t awaited_step() const { return waiting_.front().step; }
  const Request& first_that_waits() const {
    return *std::find_if(waiting_.begin(), waiting_.end(), [](const Turn& turn) {
              return turn.request != nullptr;
            })->request;
  }

  bool has(int64_t step) const {
    return std::any_of(waiting_.begin(), waiting_.end(),
                       [&](const Turn& turn) { return turn.step == step; });
  }

  // Drops a step, and returns those of it that have come.
  std::vector<Request*> drop(int64_t step) {
    return drop_if([&](const Turn& turn) { return turn.step == step; });
  }
  std::vector<Request*> drop_all() {
    return drop_if([](const Turn&) { return true; });
  }

 private:
  struct Turn {
    uint64_t number;
    int64_t step;
    Request* request;
  };

  void drop_absent_of_other_steps(int64_t step) {
    if (waiting_.empty()) return;
    drop_if([&](const Turn& turn) { return turn.step != step && !turn.request; });
  }

  template <typename Condition>
  std::vector<Request*> drop_if(Condition condition) {
    std::vector<Request*> come;
    std::deque<Turn> kept;
    for (const Turn& turn : waiting_) {
      if (!condition(turn))
        kept.push_back(turn);
      else if (turn.request)
        come.push_back(turn.request);
    }
    waiting_.swap(kept);
    come_ -= come.size();
    return come;
  }

  std::deque<Turn> waiting_;
  uint64_t last_ = 0;
  size_t come_ = 0;  // of those that wait
};

}  // namespace ringar
