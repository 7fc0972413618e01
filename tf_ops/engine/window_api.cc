// The windows of ringar.h.

#include "engine/engine_instance.h"
#include "engine/report.h"
#include "include/ringar.h"

using namespace ringar;

// The window may outlive its engine, since arrays of the user lie in its memory.
struct ringar_window {
  std::shared_ptr<Window> window;
  std::weak_ptr<Engine> engine;

  // Null after ringar_shutdown, and in a forked child, which is no rank.
  std::shared_ptr<Engine> running() const {
    auto now = engine.lock();
    return now && now == ringar::engine() ? now : nullptr;
  }
};

namespace {

int was_shut_down(const Window& window) {
  return report({RINGAR_NOT_INITIALIZED, "window \"" + window.name() +
                                             "\": expected ringar to run since the window was "
                                             "opened, but it was shut down; open it anew after "
                                             "ringar.init()"});
}

}  // namespace

extern "C" {

int ringar_open_window(const char* spec_text, int64_t length, int64_t chunk_bytes,
                       ringar_window** window) {
  Spec spec;
  const Status parsed = Spec::parse(spec_text, &spec);
  if (!parsed.ok()) return report(parsed);
  const auto running = engine();
  if (!running)
    return report({RINGAR_NOT_INITIALIZED,
                   "ringar is not initialized: call ringar.init() before ringar.Window()"});
  std::shared_ptr<Window> opened;
  const Status status = running->open_window(spec, length, chunk_bytes, &opened);
  if (status.ok()) *window = new ringar_window{std::move(opened), running};
  return report(status);
}

void* ringar_window_local(const ringar_window* window) {
  return window->window->local();
}

int64_t ringar_window_length(const ringar_window* window, int32_t rank) {
  return window->window->length(rank);
}

int ringar_access_window(ringar_window* window, int32_t rank, int32_t kind, int64_t start,
                         int64_t count, void* array, int64_t* versions) {
  const auto running = window->running();
  if (!running) return was_shut_down(*window->window);
  const Status status =
      window->window->access(rank, WindowAccess{static_cast<Access>(kind), start, count,
                                                static_cast<std::byte*>(array), versions});
  return status.ok() ? RINGAR_OK : report(status);
}

int ringar_access_rows(ringar_window* window, int32_t rank, int32_t kind, const int64_t* rows,
                       int64_t count, int64_t width, void* array, const void* before) {
  const auto running = window->running();
  if (!running) return was_shut_down(*window->window);
  const Status status = window->window->access(
      rank, WindowRows{static_cast<Access>(kind), rows, count, width, 0, width,
                       static_cast<std::byte*>(array), static_cast<const std::byte*>(before)});
  return status.ok() ? RINGAR_OK : report(status);
}

int ringar_close_window(ringar_window* window) {
  const auto running = window->running();
  return running ? report(running->close_window(window->window)) : RINGAR_OK;
}

void ringar_release_window(ringar_window* window) {
  delete window;
}

}  // extern "C"
