// A window: memory that the ranks of a process set open together; each of them has access to all of
// it on its own. Nothing but opening and closing is collective, and accesses have no order between
// ranks.
//
//     rank 0   part 0 | part 1 | part 2 | ...        of the ranks' own lengths
//
// The parts of ranks of this host lie in shared memory (window_part.h). Those of other hosts are
// reached through their ranks (window_service.h).

#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "engine/window_memory.h"
#include "engine/window_part.h"
#include "engine/window_service.h"
#include "engine/world.h"

namespace ringar {

class Window : private WindowPart::Patience, private ServedWindow {
 public:
  // A rank's description of its part, for the others.
  struct Place {
    int64_t length;
    int64_t offset;  // in the shared segment of its host
    int64_t number;  // for its WindowService
  };
  struct Member {
    int rank;  // of the job
    Place place;
    std::unique_ptr<WindowMemory> memory;  // null on another host
  };

  // `world` must stay while there are accesses, the window may stay longer. `service` is null in a
  // job on one host.
  Window(const World& world, std::shared_ptr<WindowService> service, int process_set,
         std::string name, const WindowLayout& layout, std::vector<Member> members);
  ~Window();

  int process_set() const { return process_set_; }
  const std::string& name() const { return name_; }
  int64_t length(int rank) const { return members_[static_cast<size_t>(rank)].place.length; }
  // Of this rank's part; there as long as the window, also when it is closed.
  std::byte* local() const;

  // Any thread. `rank` is one of the process set.
  Status access(int rank, const WindowAccess& access);
  Status access(int rank, const WindowRows& access);

  // Waits for the accesses of this process; later ones fail. False if it was closed before.
  bool close();
  // Ranks of other hosts have no access any longer.
  void end_service();

 private:
  Status serve(const WindowAccess& access) override;
  Status serve(const WindowRows& access) override;
  Status look(int holder, double seconds) const override;
  std::string refusal(int rank, const WindowAccess& access) const;
  std::string refusal(int rank, const WindowRows& access) const;
  std::string refusal_of_rank(int rank) const;
  template <typename Any>
  Status access_any(int rank, const Any& access);
  template <typename Any>
  Status access_part(int rank, const Any& access);
  template <typename Any>
  Status serve_any(const Any& access);
  Status loss(const Member& member, bool looks);
  std::string who(const char* name) const;

  const World& world_;
  const std::shared_ptr<WindowService> service_;
  const int rank_;  // this one, of the job
  const int process_set_;
  const std::string name_;
  const WindowLayout layout_;
  const std::vector<Member> members_;
  std::vector<std::optional<WindowPart>> parts_;  // of ranks of this host
  size_t own_place_ = 0;                          // the place of this rank's
  std::vector<std::atomic<int64_t>> look_at_;     // when to see whether a rank is there
  std::shared_mutex mutex_;                       // accesses share it
  bool closed_ = false;
};

}  // namespace ringar
