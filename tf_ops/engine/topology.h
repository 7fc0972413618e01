// The hosts of the ranks: ranks of one host share its memory.

#pragma once

#include <algorithm>
#include <vector>

#include "include/ringar.h"

namespace ringar {

// The index of a rank in a list of ranks; the list's size if it is not there.
inline int place_in(const std::vector<int>& ranks, int rank) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

struct Topology {
  int rank = 0;           // this one
  std::vector<int> host;  // of each rank of the job

  // A config without hosts is that of a job on one.
  static Topology of(const ringar_config& config) {
    Topology topology{config.rank, std::vector<int>(static_cast<size_t>(config.size), 0)};
    if (config.hosts) topology.host.assign(config.hosts, config.hosts + config.size);
    return topology;
  }

  bool is_one_host() const {
    return std::all_of(host.begin(), host.end(), [&](int h) { return h == host[0]; });
  }
  int size() const { return static_cast<int>(host.size()); }
  int host_of(int job_rank) const { return host[static_cast<size_t>(job_rank)]; }
  bool is_here(int job_rank) const { return host_of(job_rank) == host_of(rank); }

  // The ranks of this host, in order; a rank's place among them is its place in the shared segment.
  std::vector<int> ranks_here() const {
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r)
      if (is_here(r)) ranks.push_back(r);
    return ranks;
  }
  int segment_place(int job_rank) const {
    int place = 0;
    for (int r = 0; r < job_rank; ++r) place += is_here(r);
    return place;
  }
};

}  // namespace ringar
