// The engine of this process, if there is one now.

#pragma once

#include <memory>

#include "engine/engine.h"

namespace ringar {

// Null before ringar_init and after ringar_shutdown. The pointer keeps the engine alive.
std::shared_ptr<Engine> engine();

// Hands a request to the engine, or completes it with an error if there is none.
void submit(Request* request);
Status run(Request& request);

}  // namespace ringar
