#include "links/open.h"

#include <dlfcn.h>

namespace ringar {

// Never closed: what a failed collective has left under way is the library's business.
Status open_link(const std::string& library, void* communicator, std::unique_ptr<Link>* link) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) return {RINGAR_UNSUPPORTED, std::string("cannot open the MPI link: ") + dlerror()};
  const auto open = reinterpret_cast<OpenLink>(dlsym(handle, "ringar_open_link"));
  if (!open) return {RINGAR_UNSUPPORTED, "expected a link library of ringar, received " + library};
  char why[512] = "";
  link->reset(open(communicator, why, sizeof why));
  return *link ? Status() : Status(RINGAR_UNSUPPORTED, why);
}

}  // namespace ringar
