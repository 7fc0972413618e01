// The requests of a process set that have not begun, in the order in which they run.
//
// In a graph, TensorFlow would issue a long collective only after the one before it in the program
// has ended and a thread is free, tens of milliseconds later when all threads compute. Instead each
// draws a ticket, in the order of the program and at once, and comes whenever its inputs are ready:
// the process set holds it back until those before it have come. A request without a ticket takes
// the next one as it comes.
//
// A step that fails draws tickets and never comes. Such tickets are dropped when TensorFlow lets go
// of them (kernels/ticket.cc), when a collective of their step fails, for all ranks alike, and when
// another step draws one: two steps that are under way at once have no order that all ranks could
// share. Where TensorFlow cannot end a step because a collective of it is held back behind a ticket
// with which nothing comes, the process set does so at its deadline.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/request.h"

namespace ringar {

class Tickets {
 public:
  bool empty() const { return first_ == tickets_.size(); }

  uint64_t draw(int64_t step) {
    erase_if([&](const Ticket& ticket) { return ticket.step != step && !ticket.request; });
    tickets_.push_back({++last_, step, nullptr});
    return last_;
  }

  // False if the ticket was dropped.
  bool come(Request* request) {
    const auto ticket = find(request->ticket);
    if (ticket == tickets_.end()) return false;
    ticket->request = request;
    ++come_;
    return true;
  }

  void come_without_ticket(Request* request) {
    tickets_.push_back({++last_, request->step, request});
    ++come_;
  }

  // Drops a ticket with which nobody has come, and nobody will.
  void let_go(uint64_t number) {
    const auto ticket = find(number);
    if (ticket != tickets_.end() && !ticket->request) tickets_.erase(ticket);
  }

  // The request whose turn it is; null if it has not come.
  Request* next() const { return empty() ? nullptr : tickets_[first_].request; }

  // Takes it out. The tickets behind it move so rarely that it costs nothing.
  void pop() {
    ++first_;
    --come_;
    if (2 * first_ < tickets_.size()) return;
    tickets_.erase(tickets_.begin(), begin());
    first_ = 0;
  }

  // The ticket with which no request has come, while others wait for it; 0: none.
  uint64_t awaited() const { return come_ > 0 && !next() ? tickets_[first_].number : 0; }
  int64_t awaited_step() const { return tickets_[first_].step; }
  const Request& first_that_waits() const {
    return *std::find_if(begin(), tickets_.end(), [](const Ticket& ticket) {
              return ticket.request != nullptr;
            })->request;
  }

  // Drops a step, and adds those of it that have come to `come`. Returns whether there was
  // anything.
  bool drop(int64_t step, std::vector<Request*>* come) {
    return erase_if([&](const Ticket& ticket) { return ticket.step == step; }, come);
  }
  void drop_absent() {
    erase_if([](const Ticket& ticket) { return !ticket.request; });
  }
  std::vector<Request*> drop_all() {
    std::vector<Request*> come;
    erase_if([](const Ticket&) { return true; }, &come);
    return come;
  }

 private:
  struct Ticket {
    uint64_t number;
    int64_t step;
    Request* request;
  };
  using Line = std::vector<Ticket>;

  Line::const_iterator begin() const {
    return tickets_.begin() + static_cast<std::ptrdiff_t>(first_);
  }
  Line::iterator begin() { return tickets_.begin() + static_cast<std::ptrdiff_t>(first_); }
  Line::iterator find(uint64_t number) {
    return std::find_if(begin(), tickets_.end(),
                        [&](const Ticket& ticket) { return ticket.number == number; });
  }

  template <typename Condition>
  bool erase_if(Condition condition, std::vector<Request*>* come = nullptr) {
    const auto new_end = std::remove_if(begin(), tickets_.end(), [&](const Ticket& ticket) {
      if (!condition(ticket)) return false;
      if (ticket.request) {
        come->push_back(ticket.request);
        --come_;
      }
      return true;
    });
    const bool any = new_end != tickets_.end();
    tickets_.erase(new_end, tickets_.end());
    return any;
  }

  Line tickets_;      // from first_ on
  size_t first_ = 0;  // those before it are through
  uint64_t last_ = 0;
  size_t come_ = 0;  // of those that wait
};

}  // namespace ringar
