#include "links/tcp_inbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ringar {

int Transfers::begin(const OpenTransfer& description) {
  if (free_.empty()) {
    free_.push_back(static_cast<int>(transfers_.size()));
    transfers_.emplace_back();
  }
  const int handle = free_.back();
  free_.pop_back();
  Transfer& transfer = transfers_[static_cast<size_t>(handle)];
  transfer = {};
  transfer.description = description;
  transfer.is_open = true;
  return handle;
}

void Transfers::moved(int handle, size_t bytes) {
  transfers_[static_cast<size_t>(handle)].description.moved = static_cast<int64_t>(bytes);
}

std::vector<OpenTransfer> Transfers::open() const {
  std::vector<OpenTransfer> open;
  for (const Transfer& transfer : transfers_) {
    if (!transfer.is_open || transfer.done) continue;
    open.push_back(transfer.description);
    open.back().seconds = std::chrono::duration<double>(Clock::now() - transfer.since).count();
  }
  return open;
}

void Transfers::finish(int handle, int from) {
  Transfer& transfer = transfers_[static_cast<size_t>(handle)];
  transfer.done = true;
  transfer.from = from;
}

void Transfers::fail(int handle, Status why) {
  Transfer& transfer = transfers_[static_cast<size_t>(handle)];
  transfer.done = true;
  transfer.failure = std::move(why);
}

Status Transfers::poll(int handle, bool* done, int* from) {
  Transfer& transfer = transfers_[static_cast<size_t>(handle)];
  *done = transfer.done;
  if (!transfer.done) return {};
  free_.push_back(handle);
  transfer.is_open = false;
  if (from) *from = transfer.from;
  return std::move(transfer.failure);
}

bool Inbox::wants(const Receive& receive, int from, int tag) {
  return receive.tag == tag && (receive.from == from || receive.from == Link::kAnyone);
}

bool Inbox::fits(const Receive& receive, size_t bytes) {
  return receive.length == Link::Length::kExact ? bytes == receive.bytes : bytes <= receive.bytes;
}

Inbox::Receives::iterator Inbox::first_that_wants(int from, int tag) {
  return std::find_if(posted_.begin(), posted_.end(),
                      [&](const Receive& receive) { return wants(receive, from, tag); });
}

void Inbox::receive(const Receive& receive) {
  const auto message = std::find_if(
      arrived_.begin(), arrived_.end(),
      [&](const Message& candidate) { return wants(receive, candidate.from, candidate.tag); });
  if (message != arrived_.end()) {
    deliver(receive, *message);
    arrived_.erase(message);
  } else if (const auto loss = losses_.find(receive.from); loss != losses_.end()) {
    transfers_.fail(receive.handle, loss->second);
  } else {
    posted_.push_back(receive);
  }
}

Inbox::Message Inbox::begin(int from, int tag, size_t bytes) {
  Message message{from, tag, bytes};
  const auto receive = first_that_wants(from, tag);
  if (receive != posted_.end() && fits(*receive, bytes)) {
    message.data = receive->data;
    message.handle = receive->handle;
    posted_.erase(receive);
    return message;
  }
  message.storage.resize(bytes);
  message.data = message.storage.data();
  return message;
}

void Inbox::end(Message message) {
  if (message.handle >= 0) return transfers_.finish(message.handle, message.from);
  // Somebody may have asked for it while it came.
  const auto receive = first_that_wants(message.from, message.tag);
  if (receive == posted_.end()) return arrived_.push_back(std::move(message));
  deliver(*receive, message);
  posted_.erase(receive);
}

void Inbox::deliver(const Receive& receive, const Message& message) {
  if (!fits(receive, message.bytes)) return refuse(receive, message.from, message.bytes);
  if (message.bytes > 0) std::memcpy(receive.data, message.storage.data(), message.bytes);
  transfers_.finish(receive.handle, message.from);
}

void Inbox::refuse(const Receive& receive, int from, size_t bytes) {
  const char* const most = receive.length == Link::Length::kExact ? "" : "at most ";
  transfers_.fail(receive.handle,
                  {RINGAR_PEER_LOST, "could not receive from rank " + std::to_string(from) +
                                         " over TCP: expected a message of " + most +
                                         std::to_string(receive.bytes) +
                                         " bytes, received one of " + std::to_string(bytes)});
}

void Inbox::lose(int from, const Status& why) {
  losses_.emplace(from, why);
  posted_.remove_if([&](const Receive& receive) {
    if (receive.from == from) transfers_.fail(receive.handle, why);
    return receive.from == from;
  });
}

}  // namespace ringar
