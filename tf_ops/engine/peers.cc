#include "engine/peers.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "engine/keep.h"

namespace ringar {
namespace {

constexpr int kNoticeTag = 0;  // see LinkGroup for the others
constexpr auto kFarewell = std::chrono::milliseconds(500);

}  // namespace

Peers::Peers(Link& link, const Topology& topology, const Arena* arena, int generation)
    : link_(link),
      topology_(topology),
      arena_(arena),
      generation_(generation),
      known_(static_cast<size_t>(topology.size())),
      finished_(kMaxSets) {}

// The link may write what it still expects until the process ends.
Peers::~Peers() {
  keep_until_exit(std::move(incoming_));
}

Status Peers::expect() {
  const Status begun =
      link_.receive(Link::kAnyone, kNoticeTag, reinterpret_cast<std::byte*>(incoming_.get()),
                    sizeof(Notice), Link::Length::kExact, &expecting_);
  if (!begun.ok()) expecting_ = -1;
  return begun;
}

Status Peers::poll() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (expecting_ < 0) RINGAR_RETURN_IF_ERROR(expect());
  RINGAR_RETURN_IF_ERROR(link_.progress());
  for (;;) {
    bool done = false;
    int from = 0;
    const Status heard = link_.poll(expecting_, &done, &from);
    if (!heard.ok()) expecting_ = -1;
    RINGAR_RETURN_IF_ERROR(heard);
    if (!done) break;
    Notice& known = known_[static_cast<size_t>(from)];
    // That it has left, too, would hide why it gave up.
    if (incoming_->generation == generation_ && known.kind != kGaveUp) known = *incoming_;
    RINGAR_RETURN_IF_ERROR(expect());
    RINGAR_RETURN_IF_ERROR(link_.progress());
  }
  return let_go_of_sent();
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

void Peers::tell_all(Kind kind, int set, uint64_t sequence, const std::string& why) {
  sending_.emplace_back();
  Sending& sending = sending_.back();
  Notice& notice = sending.notice;
  notice.kind = kind;
  notice.generation = generation_;
  notice.set = set;
  notice.sequence = sequence;
  std::copy_n(finished_.begin(), kMaxSets, notice.finished);
  std::memcpy(notice.why, why.data(), fitting(why, sizeof notice.why - 1));
  for (int r = 0; r < topology_.size(); ++r) {
    int ticket = -1;
    if (r != topology_.rank && link_
                                   .send(r, kNoticeTag, reinterpret_cast<const std::byte*>(&notice),
                                         sizeof notice, &ticket)
                                   .ok())
      sending.tickets.push_back(ticket);
  }
}

void Peers::waiting(int set, uint64_t sequence) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tell_all(kWaiting, set, sequence, "");
}

void Peers::gave_up(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (told_the_end_) return;
  told_the_end_ = true;
  tell_all(kGaveUp, -1, 0, why);
  (void)link_.progress();
  (void)let_go_of_sent();
}

// Stays a moment, so that the notices get out: a process that ends makes no more progress.
void Peers::left() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!told_the_end_) tell_all(kLeft, -1, 0, "");
  told_the_end_ = true;
  const auto until = std::chrono::steady_clock::now() + kFarewell;
  while (!sending_.empty() && std::chrono::steady_clock::now() < until) {
    if (!link_.progress().ok() || !let_go_of_sent().ok()) break;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
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
  const std::string who = "rank " + std::to_string(job_rank);
  const Notice& known = known_[static_cast<size_t>(job_rank)];
  if (known.kind >= kGaveUp && finished_by(known, set) > sequence) return "";
  if (known.kind == kGaveUp) return who + " has given up: " + known.why;
  if (known.kind == kLeft && sequence != kLossOnly)
    return who + " has left: it called ringar.shutdown() or its program ended";
  if (arena_ && topology_.is_here(job_rank)) return arena_->death(topology_.arena_place(job_rank));
  return "";
}

bool Peers::waits(int job_rank, int set, uint64_t sequence) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Notice& known = known_[static_cast<size_t>(job_rank)];
  return known.kind == kWaiting && known.set == set && known.sequence == sequence;
}

}  // namespace ringar
