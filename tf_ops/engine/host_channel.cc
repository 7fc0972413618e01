#include "engine/host_channel.h"

#include <cstring>

#include "engine/message.h"
#include "engine/tuning.h"

namespace ringar {
namespace {

constexpr uint64_t kBoxes = uint64_t{1} << 36;
constexpr int kBuffers = 2;

// Why the receiver has refused message `count` - 1; stable until the message after the next one is
// sent, which is after the sender has looked.
struct Refusal {
  std::atomic<uint64_t> count;
  char why[1900];
};

struct Box {
  uint64_t offset, bytes;
};

// Of one ordered pair. One cache line (and its neighbour) for what each end writes.
struct Line {
  alignas(128) std::atomic<uint64_t> sent;
  Box boxes[kBuffers];  // the sender's: where they are
  alignas(128) std::atomic<uint64_t> taken;
  Refusal refusals[kBuffers];
};
static_assert(sizeof(Line) <= 4096, "a line fits into the smallest page");

uint64_t bell_offset(int place) {
  return Arena::kMessages + page_bytes() * static_cast<uint64_t>(place);
}

uint64_t line_offset(const HostEnd& end) {
  const auto n = static_cast<uint64_t>(end.size);
  return Arena::kMessages +
         page_bytes() * (n + static_cast<uint64_t>(end.from) * n + static_cast<uint64_t>(end.to));
}

std::byte* map_page(Arena& arena, uint64_t offset) {
  const size_t page = page_bytes();
  return arena.provide(offset, page) ? arena.map(offset, page) : nullptr;
}

// Of each of `size` senders, in whole pages.
uint64_t part_of_boxes(int size) {
  const uint64_t all = Arena::kGenerationBytes - Arena::kMessages - kBoxes, page = page_bytes();
  return all / static_cast<uint64_t>(size) / page * page;
}

class HostChannel : public Channel {
 public:
  HostChannel(const HostEnd& end, int other)
      : end_(end),
        line_(reinterpret_cast<Line*>(map_page(*end.arena, line_offset(end)))),
        bell_(*end.arena, other) {}
  ~HostChannel() override {
    for (Mapping& box : boxes_) unmap(box);
    if (line_) end_.arena->unmap(reinterpret_cast<std::byte*>(line_), page_bytes());
  }
  uint64_t number() const override { return number_; }

 protected:
  struct Mapping {
    std::byte* memory = nullptr;
    Box box{};
  };

  Status no_memory(const std::string& what) const {
    return {RINGAR_OUT_OF_MEMORY,
            "expected shared memory for " + what + ", " + end_.arena->shortage()};
  }
  Status check_memory() const {
    return line_ && bell_.flag() ? Status() : no_memory("the messages of two ranks");
  }
  Mapping& box() { return boxes_[number_ % kBuffers]; }
  bool map(Mapping& mapping, const Box& box) {
    unmap(mapping);
    std::byte* const memory = end_.arena->map(box.offset, box.bytes);
    if (memory) mapping = {memory, box};
    return memory != nullptr;
  }
  void unmap(Mapping& mapping) {
    if (mapping.memory) end_.arena->unmap(mapping.memory, mapping.box.bytes);
    mapping = {};
  }
  void tell() { bell_.flag()->add(); }

  const HostEnd end_;
  Line* const line_;
  const Bell bell_;  // of the other end
  Mapping boxes_[kBuffers];
  uint64_t number_ = 0;
};

class HostSender : public HostChannel {
 public:
  HostSender(const HostEnd& end, BoxRoom& room) : HostChannel(end, end.to), room_(room) {}

  Status advance(Request& request, bool* done) override {
    RINGAR_RETURN_IF_ERROR(check_memory());
    // Before the refusals: who has taken a message has said before whether it has refused it.
    const uint64_t taken = line_->taken.load();
    RINGAR_RETURN_IF_ERROR(refused(taken));
    if (number_ - taken >= kBuffers) return {};
    const size_t bytes = message_bytes(request);
    RINGAR_RETURN_IF_ERROR(make_room(bytes));
    write_message(request, number_, 0, box().memory);
    line_->boxes[number_ % kBuffers] = box().box;
    line_->sent.store(++number_);
    tell();
    *done = true;
    return {};
  }

 private:
  // The first refusal that nobody was told of.
  Status refused(uint64_t taken) {
    for (; looked_at_ < taken; ++looked_at_) {
      const Refusal& refusal = line_->refusals[looked_at_ % kBuffers];
      if (refusal.count.load() != looked_at_ + 1) continue;
      ++looked_at_;
      return {RINGAR_MISMATCH, refusal.why};
    }
    return {};
  }

  Status make_room(size_t bytes) {
    Mapping& mapping = box();
    size_t& provided = provided_[number_ % kBuffers];
    if (bytes > mapping.box.bytes) RINGAR_RETURN_IF_ERROR(grow(mapping, provided, bytes));
    if (bytes <= provided) return {};
    const size_t more = page_up(bytes) - provided;
    if (!end_.arena->provide(mapping.box.offset + provided, more))
      return no_memory("a message of " + std::to_string(bytes) + " bytes");
    provided += more;
    return {};
  }

  // The receiver has taken what was in the box, and looks where it is before it takes the next one.
  Status grow(Mapping& mapping, size_t& provided, size_t bytes) {
    uint64_t room = page_bytes();
    while (room < bytes) room *= 2;
    Box box{0, room};
    if (!room_.take(room, &box.offset))
      return {RINGAR_UNSUPPORTED,
              "expected messages whose boxes, twice as large as the longest one to each rank, take "
              "at most " +
                  std::to_string(room_.bytes()) + " bytes, received one more of " +
                  std::to_string(bytes) + " bytes; send it in parts"};
    if (provided > 0) end_.arena->discard(mapping.box.offset, provided);
    provided = 0;
    return map(mapping, box) ? Status() : no_memory("a message");
  }

  BoxRoom& room_;
  size_t provided_[kBuffers] = {};
  uint64_t looked_at_ = 0;  // messages of which it is known whether they were refused
};

class HostReceiver : public HostChannel {
 public:
  explicit HostReceiver(const HostEnd& end) : HostChannel(end, end.from) {}

  Status advance(Request& request, bool* done) override {
    RINGAR_RETURN_IF_ERROR(check_memory());
    if (line_->sent.load() == number_) return {};
    const Box where = line_->boxes[number_ % kBuffers];
    if (where.offset != box().box.offset && !map(box(), where)) return no_memory("a message");
    const Status status = read_message(box().memory, end_.from_rank, end_.to_rank, request);
    if (!status.ok() && status.code() != RINGAR_MISMATCH) return status;
    if (!status.ok()) refuse(status.message());
    line_->taken.store(++number_);
    tell();
    *done = true;
    return status;
  }

 private:
  void refuse(const std::string& why) {
    Refusal& refusal = line_->refusals[number_ % kBuffers];
    const size_t bytes = fitting(why, sizeof refusal.why - 1);
    std::memcpy(refusal.why, why.data(), bytes);
    refusal.why[bytes] = '\0';
    refusal.count.store(number_ + 1);
  }
};

}  // namespace

BoxRoom::BoxRoom(int place, int size)
    : begin_(Arena::kMessages + kBoxes + part_of_boxes(size) * static_cast<uint64_t>(place)),
      end_(begin_ + part_of_boxes(size)),
      next_(begin_) {}

bool BoxRoom::take(uint64_t bytes, uint64_t* offset) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > end_ - next_) return false;
  *offset = next_;
  next_ += bytes;
  return true;
}

Bell::Bell(Arena& arena, int place)
    : arena_(arena), flag_(reinterpret_cast<Flag*>(map_page(arena, bell_offset(place)))) {}

Bell::~Bell() {
  if (flag_) arena_.unmap(reinterpret_cast<std::byte*>(flag_), page_bytes());
}

std::unique_ptr<Channel> open_to_send(const HostEnd& end, BoxRoom& room) {
  return std::make_unique<HostSender>(end, room);
}

std::unique_ptr<Channel> open_to_receive(const HostEnd& end) {
  return std::make_unique<HostReceiver>(end);
}

}  // namespace ringar
