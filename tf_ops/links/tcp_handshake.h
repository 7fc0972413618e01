// The handshake by which two ranks prove that both are of this job, before they exchange anything
// else.
//
//   opener                                acceptor
//     |  <----------------  magic, nonce a   |
//     |  rank, generation, nonce o, proof -> |   proof = HMAC(secret, "opens", all of the numbers)
//     |  <------------------------  proof    |   proof = HMAC(secret, "accepts", the same)
//
// The numbers are both nonces, both ranks, and the opener's generation: a proof is of use for one
// connection only. An acceptor that has not come to that generation yet says "later" in place of
// "accepts"; one that is past it closes the connection. What follows is not encrypted, like MPI's
// messages: the network is trusted not to change what it carries.

#pragma once

#include <cstdint>
#include <string>

#include "engine/status.h"

namespace ringar {

// What a rank is, and what it knows.
struct Credentials {
  int32_t rank = 0;
  int32_t generation = 0;  // see ringar_config
  std::string secret;      // of the job
};

// One side of it, on a socket that does not block.
class Handshake {
 public:
  static Handshake opening(const Credentials& credentials, int peer);
  static Handshake accepting(const Credentials& credentials);

  // Goes on as far as the socket lets it.
  Status advance(int socket, bool* done);
  // Who the other one is.
  int peer() const { return peer_; }
  // Whether the connection is over, since the acceptor wants to be asked again.
  bool is_too_early() const { return is_too_early_; }
  // Whether the other one has closed the connection before it had said all.
  bool was_hung_up() const { return was_hung_up_; }

 private:
  Handshake(const Credentials& credentials, int peer, bool opens);
  // What to do with all of what was expected.
  Status hear();
  Status answer();
  Status check_opener();
  std::string proof(const char* word) const;
  Status flush(int socket, bool* all);
  Status fill(int socket, bool* all);
  Status end(const std::string& why, bool by_the_other);

  const Credentials* credentials_;
  int32_t peer_, generation_;  // the opener's
  bool opens_;
  bool is_too_early_ = false, was_hung_up_ = false;
  bool ends_ = false;  // when `out_` is on its way
  std::string nonce_, nonce_of_other_;
  std::string out_, in_;
  size_t expected_;
};

}  // namespace ringar
