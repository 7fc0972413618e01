// Opens a link library: each is a file of its own, since it needs another MPI in the process.

#pragma once

#include <memory>
#include <string>

#include "engine/status.h"
#include "links/link.h"

namespace ringar {

Status open_link(const std::string& library, void* communicator, std::unique_ptr<Link>* link);

}  // namespace ringar
