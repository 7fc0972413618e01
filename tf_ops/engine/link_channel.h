// Messages between two ranks that the link connects.
//
// A message travels in two parts: its header, which tells how long it is, and the rest. The
// receiver answers each with a receipt, which says whether it has refused it:
//
//     sender      send a | send b | wait for the receipt of a | send c ...
//     receiver    receive a's header | receive a's rest, send a receipt | receive b's header ...
//
// As between ranks of a host, no more than two messages of a channel are on their way, however
// small they are. A stream has three of the link's tags, and each message its generation in the
// header: what an earlier one has left is received and dropped.

#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/channel.h"
#include "links/link.h"

namespace ringar {

// Memory for messages, each as long as a transfer reads or writes it. A piece that was not among
// the last kTakesOfIdle is freed.
class LinkMemory {
 public:
  struct Piece {
    std::unique_ptr<std::byte[]> begin;
    size_t bytes = 0;
    uint64_t needed_at = 0;  // the number of the last message that needed it
  };
  static Piece make(size_t bytes) {
    return {std::unique_ptr<std::byte[]>(new std::byte[bytes]), bytes, 0};  // not initialized
  }
  Piece take(size_t bytes);
  void give(Piece piece);
  size_t idle_bytes() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Piece> free_;
  uint64_t takes_ = 0;
};

// One end of a stream, by ranks of the job.
struct LinkEnd {
  Link* link;
  LinkMemory* memory;
  int rank, peer;
  int generation;
  int tag;
};

std::unique_ptr<Channel> open_to_send(const LinkEnd& end);
std::unique_ptr<Channel> open_to_receive(const LinkEnd& end);

}  // namespace ringar
