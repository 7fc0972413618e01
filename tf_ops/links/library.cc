#include "links/library.h"

#include <dlfcn.h>

namespace ringar {

Status Library::open(const std::string& file) {
  file_ = file;
  handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_) return {};
  return {RINGAR_UNSUPPORTED, "expected " + what_ + ", found none (" + dlerror() + "). " + remedy_};
}

void* Library::find(const char* function) {
  void* const found = dlsym(handle_, function);
  if (!found) missing_.emplace_back(function);
  return found;
}

Status Library::complete() const {
  if (missing_.empty()) return {};
  return {RINGAR_UNSUPPORTED, "expected " + what_ + " with " + missing_.front() + ", received " +
                                  file_ + " without it. " + remedy_};
}

}  // namespace ringar
