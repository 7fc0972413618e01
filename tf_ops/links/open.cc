#include "links/open.h"

#include <dlfcn.h>
#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <string>

#include "links/tcp.h"

namespace ringar {
namespace {

// Never closed: a failed collective may have left transfers to it.
Status open_library(const std::string& library, void* communicator, std::unique_ptr<Link>* link) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) return {RINGAR_UNSUPPORTED, std::string("cannot open the MPI link: ") + dlerror()};
  const auto open = reinterpret_cast<OpenLink>(dlsym(handle, "ringar_open_link"));
  if (!open) return {RINGAR_UNSUPPORTED, "expected a link library of ringar, received " + library};
  char why[512] = "";
  link->reset(open(communicator, why, sizeof why));
  return *link ? Status() : Status(RINGAR_UNSUPPORTED, why);
}

Status open_tcp(const ringar_config& config, std::unique_ptr<Link>* link) {
  std::vector<TcpAddress> addresses;
  std::istringstream texts(config.link_addresses);
  for (std::string text; texts >> text;) addresses.push_back(TcpAddress::parse(text));
  if (addresses.size() != static_cast<size_t>(config.size))
    return {RINGAR_MISMATCH, "expected the addresses of " + std::to_string(config.size) +
                                 " ranks, received " + std::to_string(addresses.size())};
  // The caller's stays, for the next start.
  Descriptor listener(fcntl(config.link_listener, F_DUPFD_CLOEXEC, 0));
  if (listener.get() < 0)
    return {RINGAR_UNSUPPORTED, "expected a socket that listens, received file descriptor " +
                                    std::to_string(config.link_listener) + ": " + strerror(errno)};
  return open_tcp_link({config.rank, config.generation, config.link_secret}, std::move(listener),
                       std::move(addresses), link);
}

}  // namespace

Status open_link(const ringar_config& config, std::unique_ptr<Link>* link) {
  if (config.link_library) return open_library(config.link_library, config.link_communicator, link);
  return config.link_addresses ? open_tcp(config, link) : Status();
}

}  // namespace ringar
