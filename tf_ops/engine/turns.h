// The requests of a process set that have not begun, in the order in which they run.
//
// In a graph, TensorFlow would issue a long collective only after the one before it in the program
// has ended and a thread is free, tens of milliseconds later when all threads compute. Instead each
// draws a turn, in the order of the program and at once, and comes whenever its inputs are ready:
// the process set holds it back until those before it have come. A request without a turn takes
// the next one as it comes.
//
// A step that fails draws turns and never comes. Such turns are dropped when TensorFlow lets go of
// them (kernels/turn.cc), when a collective of their step fails, for all ranks alike, and when
// another step draws one: two steps that are under way at once have no order that all ranks could
// share. Where TensorFlow cannot end a step because a collective of it is held back behind a turn
// that never comes, the process set does so at its deadline.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/request.h"

namespace ringar {

class Turns {
 public:
  bool empty() const { return first_ == turns_.size(); }

  uint64_t draw(int64_t step) {
    erase_if([&](const Turn& turn) { return turn.step != step && !turn.request; });
    turns_.push_back({++last_, step, nullptr});
    return last_;
  }

  // False if the turn was dropped.
  bool come(Request* request) {
    const auto turn = find(request->turn);
    if (turn == turns_.end()) return false;
    turn->request = request;
    ++come_;
    return true;
  }

  void come_without_turn(Request* request) {
    turns_.push_back({++last_, request->step, request});
    ++come_;
  }

  // Drops a turn with which nobody has come, and nobody will.
  void let_go(uint64_t number) {
    const auto turn = find(number);
    if (turn != turns_.end() && !turn->request) turns_.erase(turn);
  }

  // The request whose turn it is; null if it has not come.
  Request* next() const { return empty() ? nullptr : turns_[first_].request; }

  // Takes it out. What is behind it moves so rarely that it costs nothing.
  void pop() {
    ++first_;
    --come_;
    if (2 * first_ < turns_.size()) return;
    turns_.erase(turns_.begin(), begin());
    first_ = 0;
  }

  // The turn that has not come, while requests wait for it; 0: none.
  uint64_t awaited() const { return come_ > 0 && !next() ? turns_[first_].number : 0; }
  int64_t awaited_step() const { return turns_[first_].step; }
  const Request& first_that_waits() const {
    return *std::find_if(begin(), turns_.end(), [](const Turn& turn) {
              return turn.request != nullptr;
            })->request;
  }

  // Drops a step, and adds those of it that have come to `come`. Returns whether there was
  // anything.
  bool drop(int64_t step, std::vector<Request*>* come) {
    return erase_if([&](const Turn& turn) { return turn.step == step; }, come);
  }
  void drop_absent() {
    erase_if([](const Turn& turn) { return !turn.request; });
  }
  std::vector<Request*> drop_all() {
    std::vector<Request*> come;
    erase_if([](const Turn&) { return true; }, &come);
    return come;
  }

 private:
  struct Turn {
    uint64_t number;
    int64_t step;
    Request* request;
  };
  using Line = std::vector<Turn>;

  Line::const_iterator begin() const {
    return turns_.begin() + static_cast<std::ptrdiff_t>(first_);
  }
  Line::iterator begin() { return turns_.begin() + static_cast<std::ptrdiff_t>(first_); }
  Line::iterator find(uint64_t number) {
    return std::find_if(begin(), turns_.end(),
                        [&](const Turn& turn) { return turn.number == number; });
  }

  template <typename Condition>
  bool erase_if(Condition condition, std::vector<Request*>* come = nullptr) {
    const auto kept = std::remove_if(begin(), turns_.end(), [&](const Turn& turn) {
      if (!condition(turn)) return false;
      if (turn.request) {
        come->push_back(turn.request);
        --come_;
      }
      return true;
    });
    const bool any = kept != turns_.end();
    turns_.erase(kept, turns_.end());
    return any;
  }

  Line turns_;        // from first_ on
  size_t first_ = 0;  // those before it are through
  uint64_t last_ = 0;
  size_t come_ = 0;  // of those that wait
};

}  // namespace ringar
