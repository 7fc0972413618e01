#include "engine/link_channel.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <list>
#include <vector>

#include "engine/keep.h"
#include "engine/link_group.h"
#include "engine/message.h"

namespace ringar {
namespace {

constexpr int kHeaderTag = LinkGroup::kLastTag + 1;
constexpr int kRestTag = kHeaderTag + 1;
constexpr int kReceiptTag = kRestTag + 1;
static_assert(kReceiptTag <= 32767, "MPI promises no more tags");

constexpr int kBuffers = 2;
constexpr size_t kMostBytes = size_t{1} << 30;  // of a transfer: MPI counts them in an int
constexpr double kGrace = 1.0;                  // seconds that a message may take by itself

struct Receipt {
  uint64_t number = 0;
  int32_t generation = 0;
  uint32_t refused = 0;
  char why[1900] = {};  // sent only if it was refused
};

// Memory with the transfers that read or write it.
struct Buffer {
  std::unique_ptr<std::byte[]> memory;
  size_t bytes = 0;
  std::vector<int> tickets;

  // What it held is lost where it has to grow.
  std::byte* at_least(size_t wanted) {
    if (bytes < wanted) {
      memory.reset(new std::byte[wanted]);  // not initialized
      bytes = wanted;
    }
    return memory.get();
  }
};

class LinkChannel : public Channel {
 public:
  LinkChannel(Link& link, int peer, int generation)
      : link_(link), peer_(peer), generation_(generation) {}
  uint64_t number() const override { return number_; }
  bool polls() const override { return true; }
  double grace() const override { return kGrace; }

 protected:
  Status send(int tag, Buffer& buffer, size_t begin, size_t end) {
    return in_parts(
        begin, end,
        [&](size_t at, size_t bytes, int* ticket) {
          return link_.send(peer_, tag, buffer.memory.get() + at, bytes, ticket);
        },
        &buffer.tickets);
  }
  Status receive(int tag, Buffer& buffer, size_t begin, size_t end, Link::Length length) {
    return in_parts(
        begin, end,
        [&](size_t at, size_t bytes, int* ticket) {
          return link_.receive(peer_, tag, buffer.memory.get() + at, bytes, length, ticket);
        },
        &buffer.tickets);
  }

  // Looks after the transfers of a buffer.
  Status poll(Buffer& buffer, bool* done) {
    Status status;
    const auto is_over = [&](int ticket) {
      bool over = false;
      const Status polled = link_.poll(ticket, &over);
      if (!polled.ok()) status = polled;
      return over || !polled.ok();
    };
    auto& tickets = buffer.tickets;
    tickets.erase(std::remove_if(tickets.begin(), tickets.end(), is_over), tickets.end());
    *done = tickets.empty();
    return status;
  }

  // For transfers that nobody can take back.
  static void keep(Buffer& buffer) {
    if (!buffer.tickets.empty()) keep_until_exit(std::move(buffer.memory));
  }

  Link& link_;
  const int peer_;
  const int generation_;
  uint64_t number_ = 0;

 private:
  template <typename Begin>
  static Status in_parts(size_t at, size_t end, Begin begin, std::vector<int>* tickets) {
    while (at < end) {
      const size_t bytes = std::min(end - at, kMostBytes);
      int ticket = -1;
      RINGAR_RETURN_IF_ERROR(begin(at, bytes, &ticket));
      tickets->push_back(ticket);
      at += bytes;
    }
    return {};
  }
};

class LinkSender : public LinkChannel {
 public:
  using LinkChannel::LinkChannel;
  ~LinkSender() override {
    for (Buffer& buffer : buffers_) keep(buffer);
    keep(receipt_);
  }

  Status advance(Request& request, bool* done) override {
    RINGAR_RETURN_IF_ERROR(failure_);
    RINGAR_RETURN_IF_ERROR(link_.progress());
    RINGAR_RETURN_IF_ERROR(read_receipts());
    if (!refusals_.empty()) {
      const std::string why = refusals_.front();
      refusals_.pop_front();
      return {RINGAR_MISMATCH, why};
    }
    Buffer& buffer = buffers_[number_ % kBuffers];
    bool is_free = false;
    RINGAR_RETURN_IF_ERROR(poll(buffer, &is_free));
    if (!is_free || number_ - taken_ >= kBuffers) return {};
    const size_t bytes = message_bytes(request);
    write_message(request, number_, generation_, buffer.at_least(bytes));
    RINGAR_RETURN_IF_ERROR(send(kHeaderTag, buffer, 0, sizeof(Header)));
    RINGAR_RETURN_IF_ERROR(send(kRestTag, buffer, sizeof(Header), bytes));
    ++number_;
    *done = true;
    return link_.progress();
  }

  bool tend() override {
    bool under_way = false;
    Status status = link_.progress();
    for (Buffer& buffer : buffers_) {
      bool sent = true;
      if (status.ok()) status = poll(buffer, &sent);
      under_way |= !sent;
    }
    if (!status.ok()) failure_ = status;
    return under_way && status.ok();
  }

 private:
  Status read_receipts() {
    while (taken_ < number_) {
      if (receipt_.tickets.empty()) {
        receipt_.at_least(sizeof(Receipt));
        RINGAR_RETURN_IF_ERROR(
            receive(kReceiptTag, receipt_, 0, sizeof(Receipt), Link::Length::kAtMost));
        RINGAR_RETURN_IF_ERROR(link_.progress());
      }
      bool has_come = false;
      RINGAR_RETURN_IF_ERROR(poll(receipt_, &has_come));
      if (!has_come) return {};
      const auto& receipt = *reinterpret_cast<const Receipt*>(receipt_.memory.get());
      if (receipt.generation != generation_) continue;
      taken_ = receipt.number + 1;
      if (receipt.refused) refusals_.emplace_back(receipt.why);
    }
    return {};
  }

  Buffer buffers_[kBuffers];
  Buffer receipt_;
  uint64_t taken_ = 0;  // messages whose receipt has come
  std::deque<std::string> refusals_;
  Status failure_;  // of a transfer whose request is done
};

class LinkReceiver : public LinkChannel {
 public:
  LinkReceiver(Link& link, int from, int to, int generation)
      : LinkChannel(link, from, generation), rank_(to) {}
  ~LinkReceiver() override {
    keep(message_);
    for (Buffer& receipt : receipts_) keep(receipt);
  }

  Status advance(Request& request, bool* done) override {
    RINGAR_RETURN_IF_ERROR(link_.progress());
    do {
      bool has_come = false;
      RINGAR_RETURN_IF_ERROR(receive_message(&has_come));
      if (!has_come) return {};
    } while (header().generation != generation_);
    if (header().number != number_)
      return {RINGAR_PEER_LOST, "expected message " + std::to_string(number_) + " of rank " +
                                    std::to_string(peer_) + ", received message " +
                                    std::to_string(header().number)};
    const Status status = read_message(message_.memory.get(), peer_, rank_, request);
    if (!status.ok() && status.code() != RINGAR_MISMATCH) return status;
    RINGAR_RETURN_IF_ERROR(answer(status));
    ++number_;
    *done = true;
    return status;
  }

  bool tend() override {
    bool good = link_.progress().ok();
    for (auto receipt = receipts_.begin(); good && receipt != receipts_.end();) {
      bool sent = false;
      good = poll(*receipt, &sent).ok();
      receipt = sent ? receipts_.erase(receipt) : std::next(receipt);
    }
    return good && !receipts_.empty();
  }

  // What has begun to come is waited for.
  double grace() const override {
    return part_ == Part::kRest ? std::numeric_limits<double>::infinity() : kGrace;
  }

 private:
  enum class Part { kNone, kHeader, kRest };

  Header header() const {
    Header header;
    std::memcpy(&header, message_.memory.get(), sizeof header);
    return header;
  }

  Status receive_message(bool* has_come) {
    bool done = false;
    if (part_ == Part::kNone) {
      message_.at_least(sizeof(Header));
      RINGAR_RETURN_IF_ERROR(
          receive(kHeaderTag, message_, 0, sizeof(Header), Link::Length::kExact));
      part_ = Part::kHeader;
      RINGAR_RETURN_IF_ERROR(link_.progress());
    }
    if (part_ == Part::kHeader) {
      RINGAR_RETURN_IF_ERROR(poll(message_, &done));
      if (!done) return {};
      const Header known = header();
      std::memcpy(message_.at_least(known.bytes), &known, sizeof known);
      RINGAR_RETURN_IF_ERROR(
          receive(kRestTag, message_, sizeof(Header), known.bytes, Link::Length::kExact));
      part_ = Part::kRest;
      RINGAR_RETURN_IF_ERROR(link_.progress());
    }
    RINGAR_RETURN_IF_ERROR(poll(message_, &done));
    if (!done) return {};
    part_ = Part::kNone;
    *has_come = true;
    return {};
  }

  Status answer(const Status& status) {
    Receipt receipt;
    receipt.number = number_;
    receipt.generation = generation_;
    receipt.refused = !status.ok();
    const std::string& why = status.message();
    const size_t text = fitting(why, sizeof receipt.why - 1);
    std::memcpy(receipt.why, why.data(), text);
    const size_t bytes = status.ok() ? offsetof(Receipt, why) : sizeof receipt;
    Buffer& buffer = receipts_.emplace_back();
    std::memcpy(buffer.at_least(bytes), &receipt, bytes);
    RINGAR_RETURN_IF_ERROR(send(kReceiptTag, buffer, 0, bytes));
    return link_.progress();
  }

  const int rank_;
  Part part_ = Part::kNone;  // that is being received
  Buffer message_;
  std::list<Buffer> receipts_;  // that are being sent
};

}  // namespace

std::unique_ptr<Channel> open_to_send(Link& link, int to, int generation) {
  return std::make_unique<LinkSender>(link, to, generation);
}

std::unique_ptr<Channel> open_to_receive(Link& link, int from, int to, int generation) {
  return std::make_unique<LinkReceiver>(link, from, to, generation);
}

}  // namespace ringar
