// The report on a rank's open transfers, when it has waited for too long.
//
// If rank 0 has sent the message that rank 1 still waits for, the link has it; if rank 0 has not
// begun to send, the engine of rank 0 is somewhere else. So each rank's error names both ends.

#pragma once

#include <string>
#include <vector>

#include "links/link.h"

namespace ringar {

// "Rank 1 has open: 2 receives from rank 0 (collectives; 0 of 48032 bytes, for 30 s)."; groups of
// transfers with the same rank, direction and purpose, those first that are open for longest.
// Receives from anyone are always open, and left out.
std::string describe_open_transfers(int rank, const std::vector<OpenTransfer>& transfers);

}  // namespace ringar
