#include "engine/peers.h"

#include <algorithm>
#include <cstring>

#include "engine/keep.h"
#include "engine/wait.h"

namespace ringar {
namespace {

constexpr int kNoticeTag = 0;      // see LinkGroup for the others
constexpr double kFarewell = 0.5;  // seconds

size_t place_in(const std::vector<int>& members, int rank) {
  return static_cast<size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
}

}  // namespace

Peers::Peers(Link& link, const Topology& topology, const Arena* arena, int generation)
    : link_(link),
      topology_(topology),
      arena_(arena),
      generation_(generation),
      finished_(kMaxSets),
      incoming_(sizeof(Notice) +
                std::max(kWhyBytes, static_cast<size_t>(topology.size()) / 8 + 1)) {}

// The link may write what it still expects until the process ends.
Peers::~Peers() {
  keep_until_exit(std::move(incoming_));
}

void Peers::add_neighbors(const std::vector<int>& members) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t n = members.size(), me = place_in(members, topology_.rank);
  for (size_t distance = 1; distance < n; distance *= 2) {
    audience_.insert(members[(me + distance) % n]);
    audience_.insert(members[(me + n - distance) % n]);
  }
}

Status Peers::expect() {
  const Status begun = link_.receive(Link::kAnyone, kNoticeTag, incoming_.data(), incoming_.size(),
                                     Link::Length::kAtMost, &expecting_);
  if (!begun.ok()) expecting_ = -1;
  return begun;
}

Status Peers::poll() {
  const std::lock_guard<std::mutex> lock(mutex_);
  RINGAR_RETURN_IF_ERROR(hear_all());
  return let_go_of_sent();
}

Status Peers::hear_all() {
  if (expecting_ < 0) RINGAR_RETURN_IF_ERROR(expect());
  RINGAR_RETURN_IF_ERROR(link_.progress());
  for (;;) {
    bool done = false;
    int from = 0;
    const Status heard = link_.poll(expecting_, &done, &from);
    if (!heard.ok()) expecting_ = -1;
    RINGAR_RETURN_IF_ERROR(heard);
    if (!done) return {};
    Notice notice;
    std::memcpy(&notice, incoming_.data(), sizeof notice);
    const auto* rest = reinterpret_cast<const char*>(incoming_.data()) + sizeof notice;
    if (notice.generation == generation_) hear(from, notice, {rest, notice.bytes});
    RINGAR_RETURN_IF_ERROR(expect());
    RINGAR_RETURN_IF_ERROR(link_.progress());
  }
}

void Peers::hear(int from, const Notice& notice, const std::string& rest) {
  if (notice.kind == kWaiting) {
    if (notice.set >= 0) return merge(notice.set, notice.sequence, rest);
    const bool asks_first = audience_.insert(from).second;
    if (asks_first && !own_end_.empty()) send(own_end_, {from});
    return;
  }
  if (notice.rank == topology_.rank) return;  // passed on by those that it has told
  End& end = ends_[static_cast<int>(notice.rank)];
  // That it has left, too, would hide why it gave up.
  if (end.notice.kind != kGaveUp) end = {notice, rest};
  if (notice.kind != kGaveUp || knows_failure_) return;
  knows_failure_ = true;
  send({reinterpret_cast<const char*>(incoming_.data()), sizeof notice + rest.size()}, audience_);
}

void Peers::merge(int64_t set, uint64_t sequence, const std::string& places) {
  Waiters& known = waiters_[set];
  if (known.sequence > sequence) return;
  if (known.sequence < sequence) known = {sequence, ""};
  known.places.resize(std::max(known.places.size(), places.size()));
  for (size_t i = 0; i < places.size(); ++i)
    known.places[i] = static_cast<char>(known.places[i] | places[i]);
}

Status Peers::let_go_of_sent() {
  Status status;
  for (auto sending = sending_.begin(); sending != sending_.end();) {
    auto& tickets = sending->tickets;
    const auto is_sent = [&](int ticket) {
      bool done = false;
      const Status sent = link_.poll(ticket, &done);
      if (!sent.ok()) status = sent;
      return done || !sent.ok();
    };
    tickets.erase(std::remove_if(tickets.begin(), tickets.end(), is_sent), tickets.end());
    sending = tickets.empty() ? sending_.erase(sending) : std::next(sending);
  }
  return status;
}

void Peers::send(const std::string& bytes, const std::set<int>& to) {
  Sending& sending = sending_.emplace_back(Sending{bytes, {}});
  const auto* memory = reinterpret_cast<const std::byte*>(sending.bytes.data());
  for (int rank : to) {
    int ticket = -1;
    if (link_.send(rank, kNoticeTag, memory, sending.bytes.size(), &ticket).ok())
      sending.tickets.push_back(ticket);
  }
}

bool Peers::waiting(int set, uint64_t sequence, const std::vector<int>& members, int hop) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Notice notice;
  notice.generation = generation_;
  notice.rank = topology_.rank;
  notice.set = set;
  notice.sequence = sequence;
  const size_t n = members.size(), me = place_in(members, topology_.rank);
  const size_t distance = size_t{1} << hop;
  std::string places;
  if (set >= 0) {
    std::string mine(n / 8 + 1, '\0');
    mine[me / 8] = static_cast<char>(1 << me % 8);
    merge(set, sequence, mine);
    places = waiters_[set].places;
  }
  notice.bytes = places.size();
  const int to = me == n ? members[0] : members[(me + distance) % n];
  if (to != topology_.rank)
    send(std::string(reinterpret_cast<const char*>(&notice), sizeof notice) + places, {to});
  return 2 * distance < n;
}

std::string Peers::end_notice(Kind kind, const std::string& why) const {
  Notice notice;
  notice.kind = kind;
  notice.generation = generation_;
  notice.rank = topology_.rank;
  std::copy_n(finished_.begin(), kMaxSets, notice.finished);
  notice.bytes = fitting(why, kWhyBytes);
  return std::string(reinterpret_cast<const char*>(&notice), sizeof notice) +
         why.substr(0, notice.bytes);
}

void Peers::gave_up(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!own_end_.empty()) return;
  std::string text = "rank " + std::to_string(topology_.rank) + " has given up: " + why;
  // In place of a chain of ranks that give up because of one another, its first link.
  for (const auto& [rank, end] : ends_)
    if (why.find(end.why) != std::string::npos) text = end.why;
  own_end_ = end_notice(kGaveUp, text);
  knows_failure_ = true;
  send(own_end_, audience_);
  (void)link_.progress();
  (void)let_go_of_sent();
}

// Stays a moment, so that the notices get out: a process that ends makes no more progress.
void Peers::left() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (own_end_.empty()) {
    (void)hear_all();  // who asks to be told
    own_end_ = end_notice(kLeft, "rank " + std::to_string(topology_.rank) +
                                     " has left: it called ringar.shutdown() or its program ended");
    send(own_end_, audience_);
  }
  (void)wait_at_most(kFarewell, {}, [&] {
    return !link_.progress().ok() || !let_go_of_sent().ok() || sending_.empty();
  });
  // What is still on its way keeps its memory: the link may read it until the process ends.
  if (!sending_.empty()) keep_until_exit(std::move(sending_));
}

void Peers::finished(int slot, int set, uint64_t collectives) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (slot < kMaxSets) finished_[static_cast<size_t>(slot)] = {set, collectives};
}

uint64_t Peers::finished_by(const Notice& notice, int set) {
  for (const Progress& progress : notice.finished)
    if (progress.set == set) return progress.collectives;
  return 0;
}

std::string Peers::trouble(int job_rank, int set, uint64_t sequence) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = ends_.find(job_rank);
  if (known != ends_.end()) {
    const Notice& notice = known->second.notice;
    const bool minds = notice.kind == kGaveUp || sequence != kLossOnly;
    if (finished_by(notice, set) > sequence) return "";
    if (minds) return known->second.why;
  }
  if (arena_ && topology_.is_here(job_rank)) return arena_->death(topology_.arena_place(job_rank));
  return "";
}

bool Peers::waits(size_t place, int set, uint64_t sequence) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = waiters_.find(set);
  if (known == waiters_.end() || known->second.sequence != sequence) return false;
  const std::string& places = known->second.places;
  return place / 8 < places.size() && (places[place / 8] >> place % 8 & 1) != 0;
}

}  // namespace ringar
