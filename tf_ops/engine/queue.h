// The requests that wait for the engine, first come, first served; a list that they themselves are
// the links of, so that queueing allocates nothing.

#pragma once

#include "engine/request.h"

namespace ringar {

class Queue {
 public:
  bool empty() const { return first_ == nullptr; }

  void push(Request* request) {
    request->next = nullptr;
    (empty() ? first_ : last_->next) = request;
    last_ = request;
  }

  Request* front() const { return first_; }

  Request* pop() {
    Request* request = first_;
    first_ = request->next;
    return request;
  }

 private:
  Request* first_ = nullptr;
  Request* last_ = nullptr;
};

}  // namespace ringar
