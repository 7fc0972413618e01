// Where the functions of ringar.h leave their errors.

#pragma once

#include "engine/status.h"

namespace ringar {

// Notes it for ringar_last_error() of this thread, and returns its code.
int report(const Status& status);

}  // namespace ringar
