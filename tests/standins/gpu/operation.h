// What a communicator enqueues: one call, or those of a group, which run as one.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "arithmetic.h"
#include "communicator.h"
#include "exchange.h"
#include "streams.h"

namespace standin {

enum class Kind {
  kAllReduce,
  kReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kSend,
  kRecv,
  kSplit
};

struct Call {
  Kind kind;
  const std::byte* in;
  std::byte* out;
  size_t count;
  ringar::nccl::DataType type;
  Reduction reduction;
  int peer;  // root, receiver, or sender; -1: none
};

// What a rank tells the others before it moves data: they have to agree.
struct Header {
  Kind kind;
  ringar::nccl::DataType type;
  int peer;
  Reduction reduction;
  uint64_t count, number, index, calls;  // of operations so far; of this call; in its group
  int color, key;                        // of a split: each rank has its own, as the next
  Invitation invitation;
};

class Operation {
 public:
  Operation(std::shared_ptr<Communicator> communicator, std::shared_ptr<Stream> stream)
      : communicator(std::move(communicator)), stream(std::move(stream)) {}

  // On the stream's thread.
  void run();

  const std::shared_ptr<Communicator> communicator;
  const std::shared_ptr<Stream> stream;
  std::vector<Call> calls;
  uint64_t number = 0;      // of the communicator's operations
  bool never_ends = false;  // but by an abort

 private:
  bool perform();
  bool run_collective(const Call& call, const Header& header);
  bool move(const Call& call);
  bool reduce_in_pieces(const Call& call);
  bool run_messages();
  std::string copy_to_self() const;
  bool check(const Call& call);
  std::string wrong_ranges(const Call& call) const;
  size_t bytes_in(const Call& call) const;
  size_t bytes_out(const Call& call) const;
  void fill_outputs() const;
};

// Tells all other ranks what this one does, and learns it of them; false: not all of them did.
bool exchange_headers(Communicator& communicator, const Header& header, std::vector<Header>* all);

}  // namespace standin
