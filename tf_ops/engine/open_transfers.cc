#include "engine/open_transfers.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "engine/tags.h"
#include "engine/watchdog.h"

namespace ringar {
namespace {

constexpr size_t kMostGroups = 6;

const char* purpose_of(int tag) {
  if (tag == kControlTag) return "control messages";
  if (Link::is_apart(tag) || tag < kFirstMessageTag) return "collectives";
  return tag < kWindowRequestTag ? "messages" : "windows";
}

struct Group {
  std::string with;  // "receives from rank 0"
  std::string purpose;
  size_t count = 0, bytes = 0;
  int64_t moved = 0;  // -1: the link cannot tell
  double seconds = 0;

  void add(const OpenTransfer& transfer) {
    ++count;
    bytes += transfer.bytes;
    moved = transfer.moved < 0 ? -1 : moved + transfer.moved;
    seconds = std::max(seconds, transfer.seconds);
  }

  std::string text() const {
    const std::string all = std::to_string(bytes) + " bytes";
    const std::string part = moved < 0 ? all : std::to_string(moved) + " of " + all;
    return std::to_string(count) + " " + with + " (" + purpose + "; " + part + ", for " +
           text_of_seconds(seconds) + ")";
  }
};

std::vector<Group> group(const std::vector<OpenTransfer>& transfers) {
  std::map<std::tuple<bool, int, std::string>, Group> by_peer;
  for (const OpenTransfer& transfer : transfers) {
    if (transfer.peer == Link::kAnyone) continue;
    const std::string purpose = purpose_of(transfer.tag);
    Group& group = by_peer[{transfer.receives, transfer.peer, purpose}];
    group.with = (transfer.receives ? "receive(s) from rank " : "send(s) to rank ") +
                 std::to_string(transfer.peer);
    group.purpose = purpose;
    group.add(transfer);
  }
  std::multimap<double, Group> by_age;  // the oldest first
  for (auto& [key, group] : by_peer) by_age.emplace(-group.seconds, group);
  std::vector<Group> groups;
  for (auto& [age, group] : by_age) groups.push_back(std::move(group));
  return groups;
}

}  // namespace

std::string describe_open_transfers(int rank, const std::vector<OpenTransfer>& transfers) {
  const std::vector<Group> groups = group(transfers);
  const std::string who = "Rank " + std::to_string(rank) + " has open: ";
  if (groups.empty()) return who + "no transfer.";
  std::string text;
  for (size_t i = 0; i < std::min(groups.size(), kMostGroups); ++i)
    text += (i > 0 ? ", " : "") + groups[i].text();
  if (groups.size() > kMostGroups)
    text += " and " + std::to_string(groups.size() - kMostGroups) + " more";
  return who + text + ".";
}

}  // namespace ringar
