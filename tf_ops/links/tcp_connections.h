// Connections of the TCP link. Each has one direction: the rank that opens it sends, the one that
// accepts it receives. So two ranks never disagree about which of two connections to use, and
// messages to a rank stay in order.

#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "engine/status.h"
#include "links/tcp_handshake.h"
#include "links/tcp_inbox.h"
#include "links/tcp_socket.h"

namespace ringar {

// The header of a message.
struct Frame {
  int32_t tag;
  uint32_t unused;
  uint64_t bytes;
};

class TcpSender {
 public:
  TcpSender(const Credentials& credentials, int peer, const TcpAddress& address);

  // Begins to connect, from the beginning.
  Status open();
  // Whether it is to be opened again after a pause: the acceptor has said so, or has hung up, as
  // one does that leaves for the next generation.
  bool pauses() const { return state_ == State::kPausing; }
  // `data` must stay until the handle is done.
  void push(int tag, const std::byte* data, size_t bytes, int handle);
  // Writes as much as the connection takes, and tells what is sent. `has_news`: there is something
  // to read. An error is for all transfers.
  Status advance(Transfers& transfers, bool has_news);
  // An error where the other host has not answered for half a minute; to be called every second.
  Status look_for_silence(std::chrono::steady_clock::time_point now);
  void fail(Transfers& transfers, const Status& why);

  int socket() const { return socket_.get(); }
  bool is_idle() const { return queue_.empty(); }
  bool is_ready() const { return state_ == State::kReady; }

 private:
  enum class State { kConnecting, kReady, kPausing };
  struct Outgoing {
    Frame frame;
    const std::byte* data;
    int handle;
    size_t bytes_sent = 0;  // of frame and data together

    size_t sent_of_data() const { return bytes_sent - std::min(bytes_sent, sizeof frame); }
  };
  Status connect();
  Status write(Outgoing& message, bool* all);
  Status look_for_the_end();
  Status loss(const std::string& why) const;

  const Credentials* const credentials_;
  const int peer_;
  const TcpAddress address_;
  Descriptor socket_;
  Handshake handshake_;
  State state_ = State::kConnecting;
  int hung_up_ = 0;  // times in a row
  std::optional<std::chrono::steady_clock::time_point> silent_since_;
  std::deque<Outgoing> queue_;
};

class TcpReceiver {
 public:
  TcpReceiver(const Credentials& credentials, Descriptor socket);

  // Reads what there is, and hands it to the inbox. An error is the end of the connection; of one
  // whose peer() is -1 it matters to nobody.
  Status advance(Inbox& inbox);

  // Fails the message that has come in part.
  void fail(Transfers& transfers, const Status& why);

  int peer() const { return ready_ ? handshake_.peer() : -1; }
  int socket() const { return socket_.get(); }

 private:
  // Short messages are read ahead, several at a time; the rest of a long one goes to its place.
  static constexpr size_t kAhead = 4096;

  Status read(bool* is_empty);
  // Hands on what was read ahead.
  Status sort(Inbox& inbox);
  size_t take(void* to, size_t most);
  Status loss(const std::string& why) const;

  Descriptor socket_;
  Handshake handshake_;
  bool ready_ = false;
  std::vector<std::byte> ahead_;
  size_t begin_ = 0, end_ = 0;  // of it, what is not sorted yet
  Frame frame_{};
  size_t have_of_frame_ = 0, have_ = 0;
  size_t read_ = 0;                        // in all
  std::optional<Inbox::Message> message_;  // while it comes
};

}  // namespace ringar
