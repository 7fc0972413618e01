// Messages between two ranks that the link connects.
//
// A message travels in two parts: its header, which tells how long it is, and the rest. The
// receiver answers each with a receipt, which says whether it has refused it. Until then the sender
// keeps it in one of two buffers:
//
//     sender      send a | send b | wait for the receipt of a | send c ...
//     receiver    receive a's header | receive a's rest, send a receipt | receive b's header ...
//
// As between ranks of a host, a send waits for a free buffer only, and no more than two messages of
// a channel are on their way, however small they are. All messages of the job have three tags, and
// their generation in the header: what an earlier one has left is received and dropped.

#pragma once

#include <memory>

#include "engine/channel.h"
#include "links/link.h"

namespace ringar {

// By ranks of the job.
std::unique_ptr<Channel> open_to_send(Link& link, int to, int generation);
std::unique_ptr<Channel> open_to_receive(Link& link, int from, int to, int generation);

}  // namespace ringar
