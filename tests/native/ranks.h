// Ranks for tests: forked processes, as in a real job, or threads of this one, so that
// ThreadSanitizer sees what they do to each other.

#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "check.h"
#include "engine/engine.h"
#include "tcp_mesh.h"

// A test in a process of its own: the threads that it starts do not end, and the ranks that later
// tests fork must come from a process that has none.
#define TEST_APART(name)                                                            \
  static void apart_##name();                                                       \
  TEST(name) {                                                                      \
    ::ringar::test::on_processes(1, [](::ringar::test::Rank&) { apart_##name(); }); \
  }                                                                                 \
  static void apart_##name()

namespace ringar::test {

// What a rank's body gets: a config to start an Engine with, and a board that all ranks see and
// that has nothing to do with what is tested.
struct Rank {
  static constexpr int kNotes = 64;
  static constexpr int kFailed = kNotes - 1;

  int rank, size;
  ringar_config config;
  std::atomic<int>* notes;
  const TcpMesh* mesh = nullptr;  // there if the job has several hosts

  // An engine that is not started.
  std::unique_ptr<Engine> engine() const {
    return std::make_unique<Engine>(config, mesh ? mesh->open(rank) : nullptr);
  }
  // Starts an engine; fails if it does not start.
  std::unique_ptr<Engine> start() const;

  // Waits until `value` has been noted at `place` (by add); fails if another rank has.
  void await(int place, int value) const;
  void add(int place) const { notes[place].fetch_add(1); }
  // Waits for all ranks, at a place that is used for nothing else.
  void meet(int place) const;
};

using Body = std::function<void(Rank&)>;

// Fails the test if a rank fails. All ranks share a segment, and wait for 20 s at most.
void on_threads(int size, const Body& body);
void on_processes(int size, const Body& body);

// The same with hosts: host h has as many ranks as hosts[h] says, numbered host by host or, if
// `dealt`, in turns. Each host has a shared segment of its own; between them are sockets.
struct Hosts {
  std::vector<int> ranks;
  bool dealt = false;
};
void on_threads(const Hosts& hosts, const Body& body);
void on_processes(const Hosts& hosts, const Body& body);

// How a process ended: with a code, or by a signal.
struct Ending {
  int code;
  int signal;
};

// For ranks that are to die. A body that returns makes 0, one that fails an expectation 1.
std::vector<Ending> endings(int size, const Body& body);
std::vector<Ending> endings(const Hosts& hosts, const Body& body);

}  // namespace ringar::test
