#include "socket_link.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>

#include "check.h"

namespace ringar::test {
namespace {

struct Header {
  int32_t tag;
  uint64_t bytes;
};

class SocketLink : public Link {
 public:
  SocketLink(int rank, std::vector<int> sockets)
      : rank_(rank),
        sockets_(std::move(sockets)),
        outgoing_(sockets_.size()),
        partial_(sockets_.size()) {}

  Status send(int to, int tag, const std::byte* data, size_t bytes, int* handle) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    *handle = new_handle();
    outgoing_[static_cast<size_t>(to)].push_back({{tag, bytes}, data, 0, *handle});
    return {};
  }

  Status receive(int from, int tag, std::byte* data, size_t bytes, Length length,
                 int* handle) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    *handle = new_handle();
    posted_.push_back({from, tag, data, bytes, length, *handle});
    return {};
  }

  Status progress() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t peer = 0; peer < sockets_.size(); ++peer) {
      if (static_cast<int>(peer) == rank_) continue;
      RINGAR_RETURN_IF_ERROR(write_to(peer));
      RINGAR_RETURN_IF_ERROR(read_from(peer));
    }
    return match();
  }

  Status poll(int handle, bool* done, int* from) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    Transfer& state = transfers_[static_cast<size_t>(handle)];
    *done = state.done;
    if (state.done && from) *from = state.from;
    return {};
  }

 private:
  struct Outgoing {
    Header header;
    const std::byte* data;
    size_t written;  // of header and data together
    int handle;
  };
  struct Posted {
    int from, tag;
    std::byte* data;
    size_t bytes;
    Length length;
    int handle;
  };
  struct Message {
    int from, tag;
    std::vector<std::byte> bytes;
  };
  struct Transfer {
    bool done = false;
    int from = 0;
  };

  int new_handle() {
    transfers_.emplace_back();
    return static_cast<int>(transfers_.size()) - 1;
  }

  Status write_to(size_t peer) {
    auto& queue = outgoing_[peer];
    while (!queue.empty()) {
      Outgoing& out = queue.front();
      const auto* head = reinterpret_cast<const std::byte*>(&out.header);
      const bool in_head = out.written < sizeof(Header);
      const std::byte* from =
          in_head ? head + out.written : out.data + (out.written - sizeof(Header));
      const size_t left = sizeof(Header) + (in_head ? 0 : out.header.bytes) - out.written;
      const ssize_t n = left ? ::send(sockets_[peer], from, left, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
      if (n < 0 && errno == EAGAIN) return {};
      if (n < 0) return lost(peer);
      out.written += static_cast<size_t>(n);
      if (out.written < sizeof(Header) + out.header.bytes) continue;
      transfers_[static_cast<size_t>(out.handle)].done = true;
      queue.pop_front();
    }
    return {};
  }

  Status read_from(size_t peer) {
    auto& partial = partial_[peer];
    for (;;) {
      size_t wanted = sizeof(Header);
      if (partial.size() >= sizeof(Header)) wanted += header_of(partial).bytes;
      while (partial.size() < wanted) {
        const size_t have = partial.size();
        partial.resize(wanted);
        const ssize_t n = recv(sockets_[peer], &partial[have], wanted - have, MSG_DONTWAIT);
        partial.resize(have + static_cast<size_t>(n > 0 ? n : 0));
        if (n < 0 && errno == EAGAIN) return {};
        if (n == 0) return {};  // it has ended: whoever waits for it finds out otherwise
        if (n < 0) return lost(peer);
        if (partial.size() == sizeof(Header)) wanted += header_of(partial).bytes;
      }
      const Header header = header_of(partial);
      arrived_.push_back(
          {static_cast<int>(peer), header.tag, {partial.begin() + sizeof(Header), partial.end()}});
      partial.clear();
    }
  }

  Status match() {
    for (auto posted = posted_.begin(); posted != posted_.end();) {
      auto message = arrived_.begin();
      while (message != arrived_.end() &&
             (message->tag != posted->tag ||
              (posted->from != kAnyone && message->from != posted->from)))
        ++message;
      if (message == arrived_.end()) {
        ++posted;
        continue;
      }
      const size_t bytes = message->bytes.size();
      if (bytes > posted->bytes || (bytes < posted->bytes && posted->length == Length::kExact))
        return {RINGAR_PEER_LOST, "a message has another length than its receive"};
      if (!message->bytes.empty())
        std::memcpy(posted->data, message->bytes.data(), message->bytes.size());
      transfers_[static_cast<size_t>(posted->handle)] = {true, message->from};
      arrived_.erase(message);
      posted = posted_.erase(posted);
    }
    return {};
  }

  static Header header_of(const std::vector<std::byte>& bytes) {
    Header header;
    std::memcpy(&header, bytes.data(), sizeof header);
    return header;
  }

  Status lost(size_t peer) const {
    return {RINGAR_PEER_LOST, "no connection to rank " + std::to_string(peer)};
  }

  std::mutex mutex_;
  const int rank_;
  const std::vector<int> sockets_;
  std::vector<std::deque<Outgoing>> outgoing_;
  std::vector<std::vector<std::byte>> partial_;
  std::list<Message> arrived_;
  std::list<Posted> posted_;
  std::deque<Transfer> transfers_;
};

}  // namespace

SocketMesh::SocketMesh(int size)
    : size_(size), sockets_(static_cast<size_t>(size) * static_cast<size_t>(size), -1) {
  for (int a = 0; a < size; ++a)
    for (int b = a + 1; b < size; ++b) {
      int pair[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
      sockets_[static_cast<size_t>(a * size + b)] = pair[0];
      sockets_[static_cast<size_t>(b * size + a)] = pair[1];
    }
}

SocketMesh::~SocketMesh() {
  for (int socket : sockets_)
    if (socket >= 0) close(socket);
}

std::unique_ptr<Link> SocketMesh::open(int rank) const {
  const auto begin = sockets_.begin() + rank * size_;
  return std::make_unique<SocketLink>(rank, std::vector<int>(begin, begin + size_));
}

}  // namespace ringar::test
