// The link over TCP: messages between hosts without any MPI.
//
// Each rank listens at an address that all know. A connection is opened when a rank first sends to
// another, and serves that direction alone; messages that may take other streams have connections
// of their own, by tag. Both ends prove that they know the job's secret before anything else is
// read (tcp_handshake.h); connections that do not are few at a time, and closed after some seconds.
// Messages go from the caller's memory to the socket, and from the socket to the memory of a
// receive that waits for them.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/status.h"
#include "links/link.h"
#include "links/tcp_handshake.h"
#include "links/tcp_socket.h"

namespace ringar {

// `listener`: made by listen_at(), for this rank. `addresses`: where each rank listens.
Status open_tcp_link(Credentials credentials, Descriptor listener,
                     std::vector<TcpAddress> addresses, std::unique_ptr<Link>* link);

}  // namespace ringar
