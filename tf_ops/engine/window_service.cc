#include "engine/window_service.h"

#include <algorithm>
#include <cstring>

#include "engine/leak_on_exit.h"
#include "engine/tags.h"
#include "engine/thread.h"
#include "engine/timeline.h"
#include "engine/wait.h"

namespace ringar {

// Followed by `bytes` bytes: in requests the numbers of rows, elements, and those before a move; in
// replies elements and versions, or words of an error.
struct WindowService::Header {
  int32_t generation;
  Access kind;
  uint64_t piece;  // of the rank that asks
  int64_t number;  // of the window, where it is served
  int64_t start, count;
  int64_t stride, width;  // of rows, where `start` is the column; else 0 and 1
  uint64_t bytes;
  int32_t moves;
  int32_t wants_versions;
  int32_t code;  // in replies
  int32_t unused;

  size_t bytes_of_elements(DataType dtype) const {
    return static_cast<size_t>(count * width) * size_of(dtype);
  }
};

namespace {

constexpr int kNoSet = -2;              // instead of a process set's id, in control messages
constexpr int kExpected = 8;            // messages, of requests and of each rank's replies
constexpr int kUnderWay = 24;           // pieces of an access
constexpr size_t kPieceBytes = 60'000;  // MPI asks the receiver first for more than 64,000
constexpr size_t kMostVersions = kPieceBytes / WindowLayout::kChunkUnit + 2;
constexpr size_t kMostWords = 2000;  // of an error

bool sends_array(Access kind) {
  return kind != Access::kGet && kind != Access::kVersions;
}
bool brings_array(Access kind) {
  return kind == Access::kGet || kind == Access::kFetchAdd;
}

size_t chunks_of(const WindowLayout& layout, int64_t start, int64_t count) {
  const int64_t chunk = layout.chunk_elements();
  return count == 0 ? 0 : static_cast<size_t>((start + count - 1) / chunk - start / chunk + 1);
}

// The end of the piece that begins there: that of a chunk, if the access has not ended before.
int64_t end_of_piece(const WindowLayout& layout, int64_t start, int64_t end) {
  const int64_t chunk = layout.chunk_elements();
  const auto most = static_cast<int64_t>(kPieceBytes / layout.chunk_bytes);
  return std::min(end, (start / chunk + std::max<int64_t>(most, 1)) * chunk);
}

}  // namespace

WindowService::WindowService(const World& world, int generation)
    : world_(world), generation_(generation), requests_(kExpected) {
  thread_ = std::thread([this] { thread_main(); });
}

WindowService::~WindowService() {
  stop();
  for (Transfer& request : requests_) leak_on_exit(std::move(request.memory));
  for (auto& [rank, replies] : replies_)
    for (Transfer& reply : replies) leak_on_exit(std::move(reply.memory));
  for (Transfer& transfer : sending_) leak_on_exit(std::move(transfer.memory));
}

int64_t WindowService::draw_number() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return next_number_++;
}

void WindowService::add(int64_t number, ServedWindow& window, const WindowLayout& layout) {
  const std::lock_guard<std::mutex> lock(mutex_);
  windows_[number] = {&window, layout};
}

void WindowService::remove(int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  windows_.erase(number);
}

Status WindowService::access(int rank, int64_t number, const WindowLayout& layout,
                             const WindowAccess& all) {
  Call call;
  Status status;
  WindowAccess piece = all;
  const int64_t end = all.start + all.count;
  for (int64_t at = all.start; at < end && status.ok(); at += piece.count) {
    piece.start = at;
    piece.count = end_of_piece(layout, at, end) - at;
    status = ask_when_few(rank, number, layout, piece, &call);
    if (piece.array) piece.array += static_cast<size_t>(piece.count) * size_of(layout.dtype);
    if (piece.versions) piece.versions += chunks_of(layout, piece.start, piece.count);
  }
  return finish(rank, call, status);
}

Status WindowService::access(int rank, int64_t number, const WindowLayout& layout,
                             const WindowRows& all) {
  const auto bytes = static_cast<int64_t>(size_of(layout.dtype)) * (all.moves() ? 2 : 1);
  constexpr auto kMost = static_cast<int64_t>(kPieceBytes);
  const int64_t width = std::min(all.width, kMost / bytes);
  const int64_t rows = width < all.width ? 1 : std::max<int64_t>(kMost / (8 + bytes * width), 1);
  Call call;
  Status status;
  for (int64_t row = 0; row < all.count; row += rows)
    for (int64_t column = 0; column < all.width && status.ok(); column += width) {
      const size_t offset = static_cast<size_t>(row * all.width + column) * size_of(layout.dtype);
      const WindowRows piece{all.kind,
                             all.rows + row,
                             std::min(rows, all.count - row),
                             all.stride,
                             all.column + column,
                             std::min(width, all.width - column),
                             all.array + offset,
                             all.moves() ? all.before + offset : nullptr};
      status = ask_when_few(rank, number, layout, piece, &call);
    }
  return finish(rank, call, status);
}

template <typename Any>
Status WindowService::ask_when_few(int rank, int64_t number, const WindowLayout& layout,
                                   const Any& piece, Call* call) {
  RINGAR_RETURN_IF_ERROR(wait(rank, *call, kUnderWay - 1));
  const std::lock_guard<std::mutex> lock(mutex_);
  return ask(rank, number, layout, piece, call);
}

Status WindowService::finish(int rank, Call& call, Status status) {
  if (status.ok()) status = wait(rank, call, 0);
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto entry = pending_.begin(); entry != pending_.end();)
    entry = entry->second.call == &call ? pending_.erase(entry) : std::next(entry);
  return status;
}

Status WindowService::ask(int rank, int64_t number, const WindowLayout& layout,
                          const WindowAccess& piece, Call* call) {
  Header header{};
  header.kind = piece.kind;
  header.number = number;
  header.start = piece.start;
  header.count = piece.count;
  header.width = 1;
  header.wants_versions = piece.versions != nullptr;
  std::vector<Part> body;
  if (sends_array(piece.kind))
    body.push_back({piece.array, header.bytes_of_elements(layout.dtype)});
  return post(rank, header, body,
              {call, piece.array, piece.versions, chunks_of(layout, piece.start, piece.count)});
}

Status WindowService::ask(int rank, int64_t number, const WindowLayout& layout,
                          const WindowRows& piece, Call* call) {
  Header header{};
  header.kind = piece.kind;
  header.number = number;
  header.start = piece.column;
  header.count = piece.count;
  header.stride = piece.stride;
  header.width = piece.width;
  header.moves = piece.moves();
  const size_t bytes = header.bytes_of_elements(layout.dtype);
  std::vector<Part> body = {{piece.rows, 8 * static_cast<size_t>(piece.count)}};
  if (sends_array(piece.kind)) body.push_back({piece.array, bytes});
  if (piece.moves()) body.push_back({piece.before, bytes});
  return post(rank, header, body, {call, piece.array, nullptr, 0});
}

Status WindowService::post(int rank, Header header, const std::vector<Part>& body,
                           const Pending& pending) {
  RINGAR_RETURN_IF_ERROR(contact(rank));
  pending_[next_piece_] = pending;
  ++pending.call->under_way;
  header.generation = generation_;
  header.piece = next_piece_++;
  for (const Part& part : body) header.bytes += part.bytes;
  std::byte* at = make(header.bytes);
  for (const Part& part : body) {
    if (part.bytes > 0) std::memcpy(at, part.begin, part.bytes);
    at += part.bytes;
  }
  return send(rank, kWindowRequestTag, header);
}

// The first time, the rank is asked to tell of its end. A receive that is expected from it fails
// when the connection does.
Status WindowService::contact(int rank) {
  if (replies_.count(rank)) return {};
  std::vector<Transfer>& replies = replies_[rank];
  replies.resize(kExpected);
  for (Transfer& reply : replies) RINGAR_RETURN_IF_ERROR(expect(reply, rank, kWindowReplyTag));
  world_.peers->waiting(kNoSet, 0, {rank}, 0);
  return {};
}

Status WindowService::expect(Transfer& transfer, int from, int tag) {
  constexpr size_t kBytes = sizeof(Header) + WindowLayout::kMostChunkBytes + 8 * kMostVersions;
  if (transfer.memory.bytes == 0) transfer.memory = LinkMemory::make(kBytes);
  return world_.link->receive(from, tag, transfer.memory.begin.get(), kBytes, Link::Length::kAtMost,
                              &transfer.handle);
}

std::byte* WindowService::make(size_t bytes) {
  Transfer& transfer = sending_.emplace_back();
  transfer.memory = memory_.take(sizeof(Header) + bytes);
  return transfer.memory.begin.get() + sizeof(Header);
}

// Sends the message that was made last, with its body.
Status WindowService::send(int to, int tag, const Header& header) {
  Transfer& transfer = sending_.back();
  std::memcpy(transfer.memory.begin.get(), &header, sizeof header);
  RINGAR_RETURN_IF_ERROR(world_.link->send(to, tag, transfer.memory.begin.get(),
                                           sizeof header + header.bytes, &transfer.handle));
  return world_.link->progress();
}

Status WindowService::answer(int from, const std::byte* message) {
  Header header;
  std::memcpy(&header, message, sizeof header);
  if (header.generation != generation_) return {};
  const auto window = windows_.find(header.number);
  const WindowLayout layout = window == windows_.end() ? WindowLayout{} : window->second.layout;
  const bool has_versions = header.wants_versions && window != windows_.end();
  const size_t chunks = has_versions ? chunks_of(layout, header.start, header.count) : 0;
  const bool brings = brings_array(header.kind) || header.moves;
  header.bytes = brings ? header.bytes_of_elements(layout.dtype) : 0;
  const size_t begin_of_versions = header.bytes;
  header.bytes += 8 * chunks;
  std::byte* const body = make(std::max(header.bytes, kMostWords));
  std::vector<int64_t> versions(chunks);
  const Status status = window == windows_.end()
                            ? Status(RINGAR_MISMATCH,
                                     "expected an open window, received one that "
                                     "its rank has closed")
                            : serve(window->second, header, message + sizeof header, body,
                                    versions.empty() ? nullptr : versions.data());
  header.code = status.code();
  if (!status.ok()) {
    header.bytes = fitting(status.message(), kMostWords);
    std::memcpy(body, status.message().data(), header.bytes);
  } else if (!versions.empty()) {
    std::memcpy(body + begin_of_versions, versions.data(), 8 * chunks);
  }
  return send(from, kWindowReplyTag, header);
}

// A put reads its elements from the request; other accesses leave their results in the reply.
Status WindowService::serve(const Served& served, const Header& header, const std::byte* message,
                            std::byte* reply, int64_t* versions) {
  const size_t bytes = header.bytes_of_elements(served.layout.dtype);
  const auto* const rows = reinterpret_cast<const int64_t*>(message);
  if (header.stride > 0) message += 8 * header.count;
  const bool brings = brings_array(header.kind) || header.moves;
  if (brings && sends_array(header.kind)) std::memcpy(reply, message, bytes);
  std::byte* const array =
      brings || !sends_array(header.kind) ? reply : const_cast<std::byte*>(message);
  if (header.stride == 0)
    return served.window->serve(
        WindowAccess{header.kind, header.start, header.count, array, versions});
  return served.window->serve(WindowRows{header.kind, rows, header.count, header.stride,
                                         header.start, header.width, array,
                                         header.moves ? message + bytes : nullptr});
}

// Replies to an access that has failed meanwhile have no piece any longer.
void WindowService::take_reply(const std::byte* message) {
  Header header;
  std::memcpy(&header, message, sizeof header);
  const auto entry = pending_.find(header.piece);
  if (header.generation != generation_ || entry == pending_.end()) return;
  const auto [call, array, own_versions, chunks] = entry->second;
  const std::byte* const body = message + sizeof header;
  const size_t versions = own_versions ? 8 * chunks : 0;
  if (header.code != RINGAR_OK) {
    call->status = {static_cast<ringar_code>(header.code),
                    {reinterpret_cast<const char*>(body), header.bytes}};
  } else {
    if (header.bytes > versions) std::memcpy(array, body, header.bytes - versions);
    if (versions > 0) std::memcpy(own_versions, body + header.bytes - versions, versions);
  }
  --call->under_way;
  pending_.erase(entry);
}

Status WindowService::drive(bool* moved) {
  RINGAR_RETURN_IF_ERROR(world_.link->progress());
  for (Transfer& request : requests_) {
    bool done = request.handle < 0;
    int from = -1;
    if (!done) RINGAR_RETURN_IF_ERROR(world_.link->poll(request.handle, &done, &from));
    if (!done) continue;
    request.handle = -1;
    if (from >= 0) RINGAR_RETURN_IF_ERROR(answer(from, request.memory.begin.get()));
    *moved = true;
    RINGAR_RETURN_IF_ERROR(expect(request, Link::kAnyone, kWindowRequestTag));
  }
  for (auto& [rank, replies] : replies_)
    for (Transfer& reply : replies) take_from(rank, reply, moved);
  for (auto transfer = sending_.begin(); transfer != sending_.end();) {
    bool done = transfer->handle < 0;
    // The receive that is expected from that rank tells why it has failed.
    if (!done && !world_.link->poll(transfer->handle, &done).ok()) done = true;
    if (done) memory_.give(std::move(transfer->memory));
    transfer = done ? sending_.erase(transfer) : std::next(transfer);
  }
  return {};
}

// A receive fails when the rank is lost. The others of that rank fail, too.
void WindowService::take_from(int rank, Transfer& reply, bool* moved) {
  bool done = false;
  Status status = losses_.count(rank) ? losses_[rank] : world_.link->poll(reply.handle, &done);
  if (status.ok() && done) {
    take_reply(reply.memory.begin.get());
    *moved = true;
    status = expect(reply, rank, kWindowReplyTag);
  }
  if (!status.ok()) losses_.emplace(rank, status);
}

Status WindowService::wait(int rank, Call& call, int at_most) {
  Stopwatch stopwatch;
  double look_at = Rest::kCheckEvery;
  const auto look = [&](bool* done) -> Status {
    const std::lock_guard<std::mutex> lock(mutex_);
    bool moved = false;
    if (call.under_way > at_most) RINGAR_RETURN_IF_ERROR(drive(&moved));
    *done = call.under_way <= at_most;
    return call.status;
  };
  const auto check = [&]() -> Status {
    const double waited = stopwatch.seconds();
    if (waited < look_at) return {};
    look_at = waited + Rest::kCheckEvery;
    return loss(rank, waited);
  };
  const Rest rest{world_.timeouts.spin()};
  return wait_with(rest, [&](double seconds) { world_.link->sleep(seconds); }, look, check);
}

Status WindowService::loss(int rank, double seconds) {
  const Timeouts& timeouts = world_.timeouts;
  if (timeouts.stop->load()) return {RINGAR_NOT_INITIALIZED, "ringar was shut down meanwhile"};
  RINGAR_RETURN_IF_ERROR(world_.peers->poll());
  std::string why = world_.peers->trouble(rank, kNoSet, 0);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = losses_.find(rank);
  if (why.empty() && entry != losses_.end()) why = entry->second.message();
  if (!why.empty())
    return {RINGAR_PEER_LOST, "expected rank " + std::to_string(rank) + " to answer, but " + why};
  if (seconds < timeouts.deadline) return {};
  return {RINGAR_DEADLINE, "expected rank " + std::to_string(rank) +
                               " to answer within the deadline of " +
                               text_of_seconds(timeouts.deadline) +
                               ". If it is only slow, raise the deadline "
                               "(ringar.init(deadline=...), RINGAR_DEADLINE or ringarrun "
                               "--deadline). " +
                               world_.peers->open_transfers()};
}

// An error of the link as a whole is told to whoever waits; here it only ends the service.
void WindowService::thread_main() {
  begin_thread("ringar window");
  const auto look = [&](bool* moved) -> Status {
    const std::lock_guard<std::mutex> lock(mutex_);
    RINGAR_RETURN_IF_ERROR(drive(moved));
    *moved |= is_stopped_;
    return {};
  };
  const auto sleep = [&](double seconds) { world_.link->sleep(seconds); };
  for (bool is_running = true; is_running;) {
    is_running = wait_with(Rest{}, sleep, look).ok();
    const std::lock_guard<std::mutex> lock(mutex_);
    is_running &= !is_stopped_;
  }
}

// Messages still on their way to others are sent.
void WindowService::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopped_ = true;
  }
  if (!thread_.joinable()) return;
  thread_.join();
  (void)wait_at_most(kFarewell, {}, [&] {
    const std::lock_guard<std::mutex> lock(mutex_);
    bool moved = false;
    return !drive(&moved).ok() || sending_.empty();
  });
}

}  // namespace ringar
