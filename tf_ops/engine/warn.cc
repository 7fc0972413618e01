#include "engine/warn.h"

#include <atomic>
#include <cstdio>

#include "include/ringar.h"

namespace {

std::atomic<ringar_warning_handler> the_handler{nullptr};

}  // namespace

namespace ringar {

void warn(const std::string& text) {
  if (const ringar_warning_handler handler = the_handler.load())
    handler(text.c_str());
  else
    std::fprintf(stderr, "%s\n", text.c_str());
}

}  // namespace ringar

extern "C" void ringar_on_warning(ringar_warning_handler handler) {
  the_handler.store(handler);
}
