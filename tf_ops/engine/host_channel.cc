#include "engine/host_channel.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/message.h"
#include "engine/tuning.h"

namespace ringar {
namespace {

constexpr uint64_t kTags = Spec::kUserTags + Spec::kPipelineTags;
// In place of the number of messages taken, once the receiver forgets all that come.
constexpr uint64_t kForgotten = SlotAllocator::kFilling - 1;

// Why the receiver has refused message `count` - 1; stable until the message after the next one is
// sent, which is after the sender has looked.
struct Refusal {
  std::atomic<uint64_t> count;
  char why[1900];
};

struct Place {
  uint64_t offset, bytes;
};

// Of one stream. One cache line (and its neighbour) for what each end writes.
struct Line {
  alignas(128) std::atomic<uint64_t> sent_count;
  Place places[kMessagesUnderWay];  // of the slots
  alignas(128) std::atomic<uint64_t> taken_count;
  Refusal refusals[kMessagesUnderWay];
};
static_assert(sizeof(Line) <= 4096, "a line fits into the smallest page");

uint64_t doorbell_offset(const Layout& layout, int place) {
  return layout.messages() + page_bytes() * static_cast<uint64_t>(place);
}

uint64_t line_offset(const HostEnd& end) {
  const auto n = static_cast<uint64_t>(end.size), from = static_cast<uint64_t>(end.from);
  const auto tag = static_cast<uint64_t>(Spec::place_of(end.tag));
  return doorbell_offset(end.segment->layout(), end.size) +
         page_bytes() * ((tag * n + from) * n + static_cast<uint64_t>(end.to));
}

// Behind the lines of all tags, or, where there is little room, behind those of the first ones.
uint64_t begin_of_slots(const Layout& layout, int size) {
  const auto n = static_cast<uint64_t>(size);
  const uint64_t lines = doorbell_offset(layout, size) + page_bytes() * kTags * n * n;
  return std::min(lines, layout.generation / 4 * 3);
}

// A page of a doorbell or of a line.
std::byte* map_page(SharedSegment& segment, int size, uint64_t offset) {
  const size_t page = page_bytes();
  if (offset >= begin_of_slots(segment.layout(), size)) return errno = EFBIG, nullptr;
  return segment.provide(offset, page) ? segment.map(offset, page) : nullptr;
}

// Of each of `size` senders, in whole pages.
uint64_t part_of_slots(const Layout& layout, int size) {
  const uint64_t all = layout.generation - begin_of_slots(layout, size), page = page_bytes();
  return all / static_cast<uint64_t>(size) / page * page;
}

Status no_memory(const SharedSegment& segment, const std::string& purpose, int error) {
  return {RINGAR_OUT_OF_MEMORY,
          "expected shared memory for " + purpose + ", " + segment.shortage(error)};
}

class HostChannel : public Channel {
 public:
  HostChannel(const HostEnd& end, int other)
      : end_(end),
        line_(reinterpret_cast<Line*>(map_page(*end.segment, end.size, line_offset(end)))),
        error_(errno),
        doorbell_(*end.segment, other, end.size) {}
  ~HostChannel() override {
    if (line_) end_.segment->unmap(reinterpret_cast<std::byte*>(line_), page_bytes());
  }
  uint64_t number() const override { return number_; }

 protected:
  Status check_memory() const {
    if (line_ && doorbell_.flag()) return {};
    return no_memory(*end_.segment, "messages with tag " + std::to_string(end_.tag), error_);
  }
  void tell() { doorbell_.flag()->add(); }

  const HostEnd end_;
  Line* const line_;
  const int error_;          // why there is no line
  const Doorbell doorbell_;  // of the other end
  uint64_t number_ = 0;
};

class HostSender : public HostChannel {
 public:
  HostSender(const HostEnd& end, SlotAllocator& allocator)
      : HostChannel(end, end.to), allocator_(allocator) {}

  Status advance(Request& request, bool* done) override {
    RINGAR_RETURN_IF_ERROR(check_memory());
    // Before the refusals: a receiver notes a refusal before it counts the message as taken.
    const uint64_t taken_count = line_->taken_count.load();
    if (taken_count == kForgotten) return {};
    RINGAR_RETURN_IF_ERROR(refused(taken_count));
    if (number_ - taken_count >= kMessagesUnderWay) return {};
    SlotAllocator::Slot*& slot = slots_[number_ % kMessagesUnderWay];
    RINGAR_RETURN_IF_ERROR(allocator_.take(message_bytes(request), line_->taken_count, &slot));
    write_message(request, number_, 0, slot->memory);
    line_->places[number_ % kMessagesUnderWay] = {slot->offset, slot->bytes};
    slot->until.store(number_ + 1);
    line_->sent_count.store(++number_);
    tell();
    *done = true;
    return {};
  }

 private:
  // The first refusal that was not reported yet.
  Status refused(uint64_t taken_count) {
    for (; looked_at_ < taken_count; ++looked_at_) {
      const Refusal& refusal = line_->refusals[looked_at_ % kMessagesUnderWay];
      if (refusal.count.load() != looked_at_ + 1) continue;
      ++looked_at_;
      return {RINGAR_MISMATCH, refusal.why};
    }
    return {};
  }

  SlotAllocator& allocator_;
  SlotAllocator::Slot* slots_[kMessagesUnderWay] = {};  // that it has used last
  uint64_t looked_at_ = 0;  // messages of which it is known whether they were refused
};

class HostReceiver : public HostChannel {
 public:
  explicit HostReceiver(const HostEnd& end) : HostChannel(end, end.from) {}
  ~HostReceiver() override {
    for (Mapping& slot : slots_) unmap(slot);
  }

  Status advance(Request& request, bool* done) override {
    RINGAR_RETURN_IF_ERROR(check_memory());
    if (line_->sent_count.load() == number_) return {};
    Mapping& slot = slots_[number_ % kMessagesUnderWay];
    const Place place = line_->places[number_ % kMessagesUnderWay];
    if (place.offset != slot.place.offset && !map(slot, place))
      return no_memory(*end_.segment, "a message", errno);
    const Status status = read_message(slot.memory, end_.from_rank, end_.to_rank, request);
    if (!status.ok() && status.code() != RINGAR_MISMATCH) return status;
    if (!status.ok()) refuse(status.message());
    line_->taken_count.store(++number_);
    tell();
    *done = true;
    return status;
  }

  void forget() override {
    if (line_) line_->taken_count.store(kForgotten);
  }

 private:
  // Where a slot is in this process.
  struct Mapping {
    std::byte* memory = nullptr;
    Place place{};
  };

  bool map(Mapping& mapping, const Place& place) {
    unmap(mapping);
    std::byte* const memory = end_.segment->map(place.offset, place.bytes);
    if (memory) mapping = {memory, place};
    return memory != nullptr;
  }
  void unmap(Mapping& mapping) {
    if (mapping.memory) end_.segment->unmap(mapping.memory, mapping.place.bytes);
    mapping = {};
  }
  void refuse(const std::string& why) {
    Refusal& refusal = line_->refusals[number_ % kMessagesUnderWay];
    const size_t bytes = fitting(why, sizeof refusal.why - 1);
    std::memcpy(refusal.why, why.data(), bytes);
    refusal.why[bytes] = '\0';
    refusal.count.store(number_ + 1);
  }

  Mapping slots_[kMessagesUnderWay];
};

}  // namespace

SlotAllocator::SlotAllocator(SharedSegment& segment, int place, int size)
    : segment_(segment),
      begin_(begin_of_slots(segment.layout(), size) +
             part_of_slots(segment.layout(), size) * static_cast<uint64_t>(place)),
      end_(begin_ + part_of_slots(segment.layout(), size)),
      next_(begin_) {}

SlotAllocator::~SlotAllocator() {
  for (const Slot& slot : slots_)
    if (slot.memory) segment_.unmap(slot.memory, slot.bytes);
}

Status SlotAllocator::take(size_t bytes, const std::atomic<uint64_t>& taken_count, Slot** slot) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++takes_;
  discard_idle();
  if (!*slot || !(*slot)->is_free() || (*slot)->bytes < bytes)
    *slot = best_fit(slots_, bytes, [](const Slot& candidate) { return candidate.is_free(); });
  Slot& target = *slot ? **slot : slots_.emplace_back();
  if (target.bytes < bytes) RINGAR_RETURN_IF_ERROR(replace(target, bytes));
  if (target.provided < bytes) {
    const size_t growth = page_up(bytes) - target.provided;
    if (!segment_.provide(target.offset + target.provided, growth))
      return no_memory(segment_, "a message of " + std::to_string(bytes) + " bytes", errno);
    target.provided += growth;
  }
  target.until.store(kFilling);
  target.taken_count = &taken_count;
  if (needs(bytes, target.provided)) target.needed_at = takes_;
  *slot = &target;
  return {};
}

void SlotAllocator::discard_idle() {
  for (Slot& slot : slots_) {
    const bool is_old = takes_ - slot.needed_at >= kTakesOfIdle && slot.provided > kLeastIdleBytes;
    if (!is_old || !slot.is_free()) continue;
    segment_.discard(slot.offset, slot.provided);
    slot.provided = 0;
  }
}

// The message in the slot was taken. A receiver looks up the slot before it takes a message.
Status SlotAllocator::replace(Slot& slot, size_t bytes) {
  size_t room = page_bytes();
  while (room < bytes) room *= 2;
  if (room > end_ - next_)
    return {RINGAR_UNSUPPORTED, "expected messages under way that take at most " +
                                    std::to_string(end_ - begin_) +
                                    " bytes, each up to twice its size, received one more of " +
                                    std::to_string(bytes) + " bytes; send it in parts"};
  std::byte* const memory = segment_.map(next_, room);
  if (!memory) return no_memory(segment_, "a message", errno);
  if (slot.provided > 0) segment_.discard(slot.offset, slot.provided);
  if (slot.memory) segment_.unmap(slot.memory, slot.bytes);
  slot.offset = next_;
  slot.bytes = room;
  slot.provided = 0;
  slot.memory = memory;
  next_ += room;
  return {};
}

Doorbell::Doorbell(SharedSegment& segment, int place, int size)
    : segment_(segment),
      flag_(reinterpret_cast<Flag*>(
          map_page(segment, size, doorbell_offset(segment.layout(), place)))) {}

Doorbell::~Doorbell() {
  if (flag_) segment_.unmap(reinterpret_cast<std::byte*>(flag_), page_bytes());
}

std::unique_ptr<Channel> open_to_send(const HostEnd& end, SlotAllocator& allocator) {
  return std::make_unique<HostSender>(end, allocator);
}

std::unique_ptr<Channel> open_to_receive(const HostEnd& end) {
  return std::make_unique<HostReceiver>(end);
}

}  // namespace ringar
