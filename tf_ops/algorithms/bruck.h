// A few bytes of each rank to all others, in ceil(log2 n) messages: row counts, signatures.
//
// In round k of the all-gather, a rank has the blocks of ranks r, r+1, ... r+2^k-1 (modulo n). It
// sends them, or as many as are missing, to rank r-2^k, and receives those that follow from rank
// r+2^k. Each rank sends the n-1 blocks of b bytes that it must, (n-1) b bytes.
//
// In round k of the all-to-all, a rank sends all blocks that have 2^k in the distance which they
// still have to go to rank r+2^k, n/2 of them or fewer: n/2 log2(n) b bytes, where n-1 messages,
// one to each rank, would send (n-1) b.
//
// Bruck, Ho, Kipnis, Upfal and Weathersby 1997, where both are. A rank has 2 log2(n) partners, and
// so connections, and not n-1; each message is a latency less.

#pragma once

#include <cstddef>

#include "engine/inter_node_communicator.h"
#include "engine/staging_buffers.h"

namespace ringar {

// `blocks` has room for one of `bytes` bytes for each rank of the group; this rank's is there. Uses
// the buffers from `first_buffer` on.
Status bruck_allgather(InterNodeCommunicator& group, StagingBuffers& buffers, size_t first_buffer,
                       std::byte* blocks, size_t bytes);

// `blocks` has a block for each rank; the block from that rank replaces it.
Status bruck_alltoall(InterNodeCommunicator& group, StagingBuffers& buffers, size_t first_buffer,
                      std::byte* blocks, size_t bytes);

}  // namespace ringar
