// The engine's windows: how ranks open one, and close it.

#include "engine/agreement.h"
#include "engine/engine.h"

namespace ringar {
namespace {

// Gathers the ranks' descriptions of their parts. The name carries what they must agree on.
class Opening : public InternalRequest {
 public:
  Opening(int process_set, std::string name, const Window::Place& place, std::string why_not)
      : place_(place), why_not_(std::move(why_not)) {
    spec_.collective = Collective::kOpenWindow;
    spec_.dtype = DataType::kInt64;
    spec_.process_set = process_set;
    spec_.name = std::move(name);
    const int64_t dims[] = {1, sizeof place_ / sizeof(int64_t)};
    tensors.push_back({reinterpret_cast<const std::byte*>(&place_), nullptr,
                       Shape(2, [&](int i) { return dims[i]; })});
  }
  std::string rejection(int) const override { return why_not_; }
  std::byte* allocate(size_t, int64_t rows) override {
    places.resize(static_cast<size_t>(rows));
    return reinterpret_cast<std::byte*>(places.data());
  }

  std::vector<Window::Place> places;  // by rank of the process set

 private:
  const Window::Place place_;
  const std::string why_not_;
};

std::string refusal(int64_t length, int64_t chunk_bytes) {
  using Layout = WindowLayout;
  if (length < 0 || length > Layout::kMostElements)
    return "expected a length from 0 to " + std::to_string(Layout::kMostElements) + ", received " +
           std::to_string(length);
  if (chunk_bytes <= 0 || chunk_bytes > Layout::kMostChunkBytes ||
      chunk_bytes % Layout::kChunkUnit != 0)
    return "expected chunks of a multiple of " + std::to_string(Layout::kChunkUnit) +
           " bytes, at most " + std::to_string(Layout::kMostChunkBytes) + ", received " +
           std::to_string(chunk_bytes);
  return "";
}

std::string title(const std::string& name, DataType dtype, int64_t chunk_bytes) {
  return name + " (" + std::string(name_of(dtype)) + ", chunks of " + std::to_string(chunk_bytes) +
         " bytes)";
}

}  // namespace

// Steps that may fail on one rank alone come before the first collective, or between the two of
// them, so that all ranks have the window or none.
Status Engine::open_window(const Spec& spec, int64_t length, int64_t chunk_bytes,
                           std::shared_ptr<Window>* window) {
  Status none;
  const auto set = find(spec.process_set, &none);
  if (!set) return none;
  const WindowLayout layout{spec.dtype, static_cast<size_t>(chunk_bytes)};
  std::unique_ptr<WindowMemory> memory;
  std::string why_not = refusal(length, chunk_bytes);
  if (why_not.empty())
    why_not =
        WindowMemory::make(segment_.get(), window_space(), layout.bytes(length), &memory).message();
  const auto service = window_service();
  const Window::Place place{length, memory ? static_cast<int64_t>(memory->offset()) : 0,
                            service ? service->draw_number() : 0};
  Opening opening(spec.process_set, title(spec.name, spec.dtype, chunk_bytes), place, why_not);
  RINGAR_RETURN_IF_ERROR(run(opening));

  std::vector<Window::Member> members;
  why_not =
      map_parts(set->communicator().ranks(), opening.places, layout, std::move(memory), &members);
  std::shared_ptr<Window> opened;
  if (why_not.empty())
    opened = std::make_shared<Window>(world_, service, spec.process_set, spec.name, layout,
                                      std::move(members));
  Agreement agreement(
      Collective::kOpenWindow, spec.name, [&] { return why_not; }, [] { return Status(); },
      spec.process_set);
  RINGAR_RETURN_IF_ERROR(run(agreement));
  const std::lock_guard<std::mutex> lock(sets_mutex_);
  windows_.insert(opened);
  *window = std::move(opened);
  return {};
}

std::string Engine::map_parts(const std::vector<int>& ranks,
                              const std::vector<Window::Place>& places, const WindowLayout& layout,
                              std::unique_ptr<WindowMemory> memory,
                              std::vector<Window::Member>* members) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    Window::Member& member = members->emplace_back(Window::Member{ranks[i], places[i], nullptr});
    if (member.rank == config_.rank) {
      member.memory = std::move(memory);
    } else if (world_.topology.is_here(member.rank)) {
      const Status mapped = WindowMemory::map(*segment_, static_cast<uint64_t>(member.place.offset),
                                              layout.bytes(member.place.length), &member.memory);
      if (!mapped.ok()) return mapped.message();
    }
  }
  return "";
}

// Null where this rank is alone on its host.
std::shared_ptr<WindowSpace> Engine::window_space() {
  const std::lock_guard<std::mutex> lock(sets_mutex_);
  if (segment_ && !window_space_)
    window_space_ = std::make_shared<WindowSpace>(
        segment_->layout(), world_.topology.segment_place(config_.rank),
        static_cast<int>(world_.topology.ranks_here().size()));
  return window_space_;
}

// Null in a job on one host.
std::shared_ptr<WindowService> Engine::window_service() {
  const std::lock_guard<std::mutex> lock(sets_mutex_);
  if (link_ && !world_.topology.is_one_host() && !window_service_)
    window_service_ = std::make_shared<WindowService>(world_, config_.generation);
  return window_service_;
}

// No rank is in an access to the window any longer when all have come here. If one does not come,
// the others may still use this rank's part: it stays until the shutdown.
Status Engine::close_window(const std::shared_ptr<Window>& window) {
  if (!window->close()) return {};
  Agreement agreement(
      Collective::kCloseWindow, window->name(), [] { return ""; }, [] { return Status(); },
      window->process_set());
  RINGAR_RETURN_IF_ERROR(run(agreement));
  window->end_service();
  const std::lock_guard<std::mutex> lock(sets_mutex_);
  windows_.erase(window);
  return {};
}

void Engine::stop_window_service() {
  std::shared_ptr<WindowService> last;
  {
    const std::lock_guard<std::mutex> lock(sets_mutex_);
    last = window_service_;
  }
  if (last) last->stop();
}

// After this rank has told that it leaves: nobody counts on its parts any longer.
void Engine::forget_windows() {
  std::set<std::shared_ptr<Window>> last;
  const std::lock_guard<std::mutex> lock(sets_mutex_);
  last.swap(windows_);
}

}  // namespace ringar
