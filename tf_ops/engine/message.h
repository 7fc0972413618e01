// A message from one rank to another: its description, and its layout in memory.
//
//   Header | ndims and dims of each array | the name | up to a multiple of 64 bytes | the arrays
//
// The arrays of a message have one dtype and lie one after the other. The receiver compares what
// the message says with what it has been asked to receive, dimensions that it leaves open apart,
// and refuses a message that it does not expect.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/request.h"

namespace ringar {

struct Header {
  uint64_t number;      // how many messages of this channel came before
  int32_t generation;   // of the start of the job; messages of another one may still be under way
  int32_t process_set;  // its id
  DataType dtype;
  uint32_t arrays;
  uint32_t dims_bytes, name_bytes;
  uint64_t bytes;  // of the whole message
};

size_t message_bytes(const Request& request);
// `to`: message_bytes(), aligned like memory of new.
void write_message(const Request& request, uint64_t number, int generation, std::byte* to);

// Hands the arrays to a request that receives them, with their shapes, in memory that it allocates
// where it has none. A message that it does not expect is RINGAR_MISMATCH, with both ranks'
// descriptions; `from` and `to` are ranks of the job.
Status read_message(const std::byte* message, int from, int to, Request& request);

}  // namespace ringar
