// Opens the link that a job is configured for: over TCP, or by a library. Each library is a file of
// its own, since it needs another MPI in the process.

#pragma once

#include <memory>

#include "engine/status.h"
#include "include/ringar.h"
#include "links/link.h"

namespace ringar {

// None for a job on one host that MPI has not started.
Status open_link(const ringar_config& config, std::unique_ptr<Link>* link);

}  // namespace ringar
