// The traffic of this rank: calls and bytes by collective and name.
//
// Bytes are those that a rank must send by the best algorithm, whatever algorithm it uses: of an
// array of K bytes on n ranks, 2 (n-1)/n K for an allreduce, (n-1)/n K for a reduce-scatter, the
// rows for other ranks in an all-to-all, (n-1) K for an all-gather of own parts of K bytes, and K
// for the root of a broadcast. A message counts where it is sent.

#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "engine/request.h"

namespace ringar {

struct TrafficCount {
  uint64_t calls = 0, bytes = 0;
};

class Traffic {
 public:
  static Traffic& instance();

  // A collective that has ended well; `rank` is the place among `ranks`.
  void add(const Request& request, int rank, int ranks);
  void reset();

  // A line per collective and name: collective, calls, bytes and name, between spaces; names end
  // with a zero byte, since they may hold anything else.
  std::string text() const;

 private:
  using Key = std::pair<Collective, std::string>;

  mutable std::mutex mutex_;
  std::map<Key, TrafficCount> counts_;  // entries stay, so that specs can remember theirs
};

}  // namespace ringar
