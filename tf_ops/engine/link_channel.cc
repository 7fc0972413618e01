#include "engine/link_channel.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <limits>
#include <list>
#include <vector>

#include "engine/leak_on_exit.h"
#include "engine/message.h"
#include "engine/tags.h"

namespace ringar {
namespace {

enum Part { kHeader, kRest, kReceipt, kParts };
static_assert(kParts == kTagsOfAMessage, "a message has a tag for each part");

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
  LinkMemory::Piece memory;
  std::vector<int> handles;

  // Of its own, for what is short.
  std::byte* of(size_t bytes) {
    if (memory.bytes < bytes) memory = LinkMemory::make(bytes);
    return memory.begin.get();
  }
};

class LinkChannel : public Channel {
 public:
  explicit LinkChannel(const LinkEnd& end) : end_(end), link_(*end.link) {}
  uint64_t number() const override { return number_; }
  bool polls() const override { return true; }
  double grace() const override { return kGrace; }

 protected:
  Status send(Part part, Buffer& buffer, size_t begin, size_t end) {
    return in_parts(
        begin, end,
        [&](size_t at, size_t bytes, int* handle) {
          return link_.send(end_.peer, tag(part), buffer.memory.begin.get() + at, bytes, handle);
        },
        &buffer.handles);
  }
  Status receive(Part part, Buffer& buffer, size_t begin, size_t end, Link::Length length) {
    return in_parts(
        begin, end,
        [&](size_t at, size_t bytes, int* handle) {
          return link_.receive(end_.peer, tag(part), buffer.memory.begin.get() + at, bytes, length,
                               handle);
        },
        &buffer.handles);
  }

  // Looks after the transfers of a buffer.
  Status poll(Buffer& buffer, bool* done) {
    Status status;
    const auto is_over = [&](int handle) {
      bool over = false;
      const Status polled = link_.poll(handle, &over);
      if (!polled.ok()) status = polled;
      return over || !polled.ok();
    };
    auto& handles = buffer.handles;
    handles.erase(std::remove_if(handles.begin(), handles.end(), is_over), handles.end());
    *done = handles.empty();
    return status;
  }

  std::byte* take(Buffer& buffer, size_t bytes) {
    buffer.memory = end_.memory->take(bytes);
    return buffer.memory.begin.get();
  }
  void give_back(Buffer& buffer) { end_.memory->give(std::move(buffer.memory)); }

  // For transfers that nobody can take back.
  static void leak(Buffer& buffer) {
    if (!buffer.handles.empty()) leak_on_exit(std::move(buffer.memory));
  }

  const LinkEnd end_;
  Link& link_;
  uint64_t number_ = 0;

 private:
  int tag(Part part) const { return kFirstMessageTag + kParts * Spec::place_of(end_.tag) + part; }

  template <typename Begin>
  static Status in_parts(size_t at, size_t end, Begin begin, std::vector<int>* handles) {
    while (at < end) {
      const size_t bytes = std::min(end - at, kMostBytes);
      int handle = -1;
      RINGAR_RETURN_IF_ERROR(begin(at, bytes, &handle));
      handles->push_back(handle);
      at += bytes;
    }
    return {};
  }
};

class LinkSender : public LinkChannel {
 public:
  using LinkChannel::LinkChannel;
  ~LinkSender() override {
    for (Buffer& buffer : buffers_) leak(buffer);
    leak(receipt_);
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
    Buffer& buffer = buffers_[number_ % kMessagesUnderWay];
    bool is_free = false;
    RINGAR_RETURN_IF_ERROR(poll_sent(buffer, &is_free));
    if (!is_free || number_ - receipt_count_ >= kMessagesUnderWay) return {};
    const size_t bytes = message_bytes(request);
    write_message(request, number_, end_.generation, take(buffer, bytes));
    RINGAR_RETURN_IF_ERROR(send(kHeader, buffer, 0, sizeof(Header)));
    RINGAR_RETURN_IF_ERROR(send(kRest, buffer, sizeof(Header), bytes));
    ++number_;
    *done = true;
    return link_.progress();
  }

  bool tend() override {
    bool under_way = false;
    Status status = link_.progress();
    for (Buffer& buffer : buffers_) {
      bool is_sent = true;
      if (status.ok()) status = poll_sent(buffer, &is_sent);
      under_way |= !is_sent;
    }
    if (!status.ok()) failure_ = status;
    return under_way && status.ok();
  }

 private:
  Status poll_sent(Buffer& buffer, bool* is_sent) {
    RINGAR_RETURN_IF_ERROR(poll(buffer, is_sent));
    if (*is_sent) give_back(buffer);
    return {};
  }

  Status read_receipts() {
    while (receipt_count_ < number_) {
      if (receipt_.handles.empty()) {
        receipt_.of(sizeof(Receipt));
        RINGAR_RETURN_IF_ERROR(
            receive(kReceipt, receipt_, 0, sizeof(Receipt), Link::Length::kAtMost));
        RINGAR_RETURN_IF_ERROR(link_.progress());
      }
      bool has_come = false;
      RINGAR_RETURN_IF_ERROR(poll(receipt_, &has_come));
      if (!has_come) return {};
      const auto& receipt = *reinterpret_cast<const Receipt*>(receipt_.memory.begin.get());
      if (receipt.generation != end_.generation) continue;
      receipt_count_ = receipt.number + 1;
      if (receipt.refused) refusals_.emplace_back(receipt.why);
    }
    return {};
  }

  Buffer buffers_[kMessagesUnderWay];
  Buffer receipt_;
  uint64_t receipt_count_ = 0;  // messages whose receipt has come
  std::deque<std::string> refusals_;
  Status failure_;  // of a transfer whose request is done
};

class LinkReceiver : public LinkChannel {
 public:
  using LinkChannel::LinkChannel;
  ~LinkReceiver() override {
    leak(header_);
    leak(message_);
    for (Buffer& receipt : receipts_) leak(receipt);
  }

  Status advance(Request& request, bool* done) override {
    RINGAR_RETURN_IF_ERROR(link_.progress());
    for (bool has_come = false;;) {
      RINGAR_RETURN_IF_ERROR(receive_message(&has_come));
      if (!has_come) return {};
      if (header().generation == end_.generation) break;
      give_back(message_);
    }
    if (header().number != number_)
      return {RINGAR_PEER_LOST, "expected message " + std::to_string(number_) + " of rank " +
                                    std::to_string(end_.peer) + ", received message " +
                                    std::to_string(header().number)};
    const Status status = read_message(message_.memory.begin.get(), end_.peer, end_.rank, request);
    if (!status.ok() && status.code() != RINGAR_MISMATCH) return status;
    give_back(message_);
    RINGAR_RETURN_IF_ERROR(answer(status));
    ++number_;
    *done = true;
    return status;
  }

  bool tend() override {
    bool good = link_.progress().ok();
    for (bool has_come = is_forgotten_.load(); good && has_come;) {
      good = receive_message(&has_come).ok();
      if (has_come) give_back(message_);
    }
    for (auto receipt = receipts_.begin(); good && receipt != receipts_.end();) {
      bool is_sent = false;
      good = poll(*receipt, &is_sent).ok();
      receipt = is_sent ? receipts_.erase(receipt) : std::next(receipt);
    }
    return good && (!receipts_.empty() || (is_forgotten_.load() && awaited_ == kRest));
  }

  // Its sender gets no receipts any longer.
  void forget() override { is_forgotten_.store(true); }

  // A message that has begun to come is waited for.
  double grace() const override {
    return awaited_ == kRest ? std::numeric_limits<double>::infinity() : kGrace;
  }

 private:
  Header header() const {
    Header header;
    std::memcpy(&header, header_.memory.begin.get(), sizeof header);
    return header;
  }

  Status receive_message(bool* has_come) {
    *has_come = false;
    bool done = false;
    if (awaited_ == kParts) {
      header_.of(sizeof(Header));
      RINGAR_RETURN_IF_ERROR(receive(kHeader, header_, 0, sizeof(Header), Link::Length::kExact));
      awaited_ = kHeader;
      RINGAR_RETURN_IF_ERROR(link_.progress());
    }
    if (awaited_ == kHeader) {
      RINGAR_RETURN_IF_ERROR(poll(header_, &done));
      if (!done) return {};
      const Header head = header();
      std::memcpy(take(message_, head.bytes), &head, sizeof head);
      RINGAR_RETURN_IF_ERROR(
          receive(kRest, message_, sizeof(Header), head.bytes, Link::Length::kExact));
      awaited_ = kRest;
      RINGAR_RETURN_IF_ERROR(link_.progress());
    }
    RINGAR_RETURN_IF_ERROR(poll(message_, &done));
    if (!done) return {};
    awaited_ = kParts;
    *has_come = true;
    return {};
  }

  Status answer(const Status& status) {
    Receipt receipt;
    receipt.number = number_;
    receipt.generation = end_.generation;
    receipt.refused = !status.ok();
    const std::string& why = status.message();
    const size_t text = fitting(why, sizeof receipt.why - 1);
    std::memcpy(receipt.why, why.data(), text);
    const size_t bytes = status.ok() ? offsetof(Receipt, why) : sizeof receipt;
    Buffer& buffer = receipts_.emplace_back();
    std::memcpy(buffer.of(bytes), &receipt, bytes);
    RINGAR_RETURN_IF_ERROR(send(kReceipt, buffer, 0, bytes));
    return link_.progress();
  }

  Part awaited_ = kParts;  // that is being received, if one is
  Buffer header_, message_;
  std::atomic<bool> is_forgotten_{false};
  std::list<Buffer> receipts_;  // that are being sent
};

}  // namespace

LinkMemory::Piece LinkMemory::take(size_t bytes) {
  Piece piece;
  uint64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    number = ++takes_;
    const auto is_idle = [&](const Piece& other) {
      return takes_ - other.needed_at >= kTakesOfIdle && other.bytes > kLeastIdleBytes;
    };
    free_.erase(std::remove_if(free_.begin(), free_.end(), is_idle), free_.end());
    if (Piece* const slot = best_fit(free_, bytes, [](const Piece&) { return true; })) {
      std::swap(*slot, free_.back());
      piece = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (piece.bytes < bytes) piece = make(bytes);
  if (needs(bytes, piece.bytes)) piece.needed_at = number;
  return piece;
}

void LinkMemory::give(Piece piece) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (piece.begin) free_.push_back(std::move(piece));
}

size_t LinkMemory::idle_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t bytes = 0;
  for (const Piece& piece : free_) bytes += piece.bytes;
  return bytes;
}

std::unique_ptr<Channel> open_to_send(const LinkEnd& end) {
  return std::make_unique<LinkSender>(end);
}

std::unique_ptr<Channel> open_to_receive(const LinkEnd& end) {
  return std::make_unique<LinkReceiver>(end);
}

}  // namespace ringar
