#include "links/tcp_handshake.h"

#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "links/sha256.h"

namespace ringar {
namespace {

constexpr char kMagic[] = "ringar 1";
constexpr size_t kMagicBytes = sizeof kMagic - 1, kNonceBytes = 32, kNumberBytes = 4;
constexpr size_t kProofBytes = std::tuple_size<Digest>::value;
constexpr size_t kChallengeBytes = kMagicBytes + kNonceBytes;
constexpr size_t kAnswerBytes = 2 * kNumberBytes + kNonceBytes + kProofBytes;

std::string bytes_of(int32_t number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

std::string new_nonce() {
  std::string nonce(kNonceBytes, '\0');
  size_t have = 0;
  while (have < nonce.size()) {
    const ssize_t n = getrandom(&nonce[have], nonce.size() - have, 0);
    if (n > 0) have += static_cast<size_t>(n);
  }
  return nonce;
}

bool equal_proofs(const std::string& a, const std::string& b) {
  Digest left{}, right{};
  std::copy_n(a.begin(), kProofBytes, left.begin());
  std::copy_n(b.begin(), kProofBytes, right.begin());
  return equal_digests(left, right);
}

Status stranger(const std::string& description) {
  return {RINGAR_PEER_LOST, "expected a rank of this job there, received " + description};
}

}  // namespace

Handshake::Handshake(const Credentials& credentials, int peer, bool opens)
    : credentials_(&credentials),
      peer_(peer),
      generation_(credentials.generation),
      opens_(opens),
      nonce_(new_nonce()) {
  if (!opens) out_ = kMagic + nonce_;
  expected_ = opens ? kChallengeBytes : kAnswerBytes;
}

Handshake Handshake::opening(const Credentials& credentials, int peer) {
  return {credentials, peer, true};
}
Handshake Handshake::accepting(const Credentials& credentials) {
  return {credentials, -1, false};
}

Status Handshake::advance(int socket, bool* done) {
  *done = false;
  for (;;) {
    bool all = false;
    RINGAR_RETURN_IF_ERROR(flush(socket, &all));
    if (!all) return {};
    if (ends_) return *done = true, Status();
    RINGAR_RETURN_IF_ERROR(fill(socket, &all));
    if (!all) return {};
    RINGAR_RETURN_IF_ERROR(hear());
  }
}

Status Handshake::hear() {
  if (!opens_) return check_opener();
  if (expected_ == kChallengeBytes) return answer();
  is_too_early_ = equal_proofs(in_, proof("later"));
  if (!is_too_early_ && !equal_proofs(in_, proof("accepts")))
    return stranger("a proof made with another secret");
  ends_ = true;
  return {};
}

Status Handshake::answer() {
  if (in_.compare(0, kMagicBytes, kMagic) != 0) return stranger("bytes of another protocol");
  nonce_of_other_ = in_.substr(kMagicBytes);
  out_ = bytes_of(credentials_->rank) + bytes_of(generation_) + nonce_ + proof("opens");
  in_.clear();
  expected_ = kProofBytes;
  return {};
}

Status Handshake::check_opener() {
  std::memcpy(&peer_, in_.data(), kNumberBytes);
  std::memcpy(&generation_, &in_[kNumberBytes], kNumberBytes);
  nonce_of_other_ = in_.substr(2 * kNumberBytes, kNonceBytes);
  if (!equal_proofs(in_.substr(2 * kNumberBytes + kNonceBytes), proof("opens")))
    return stranger("a proof made with another secret");
  if (generation_ < credentials_->generation) return stranger("a rank of an earlier generation");
  is_too_early_ = generation_ > credentials_->generation;
  out_ = proof(is_too_early_ ? "later" : "accepts");
  ends_ = true;
  return {};
}

std::string Handshake::proof(const char* word) const {
  const std::string opener =
      bytes_of(opens_ ? credentials_->rank : peer_) + (opens_ ? nonce_ : nonce_of_other_);
  const std::string acceptor =
      bytes_of(opens_ ? peer_ : credentials_->rank) + (opens_ ? nonce_of_other_ : nonce_);
  const Digest digest =
      hmac_sha256(credentials_->secret, word + opener + acceptor + bytes_of(generation_));
  return {digest.begin(), digest.end()};
}

Status Handshake::flush(int socket, bool* all) {
  while (!out_.empty()) {
    const ssize_t n = ::send(socket, out_.data(), out_.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) return *all = false, Status();
    if (n < 0) return end(strerror(errno), errno == ECONNRESET || errno == EPIPE);
    out_.erase(0, static_cast<size_t>(n));
  }
  return *all = true, Status();
}

Status Handshake::end(const std::string& why, bool by_the_other) {
  was_hung_up_ = by_the_other;
  return stranger(why);
}

Status Handshake::fill(int socket, bool* all) {
  while (in_.size() < expected_) {
    char bytes[kAnswerBytes];
    const ssize_t n = ::recv(socket, bytes, expected_ - in_.size(), 0);
    if (n < 0 && errno == EAGAIN) return *all = false, Status();
    if (n == 0)
      return end("the end of the connection: it refused this rank's proof, or died", true);
    if (n < 0) return end(strerror(errno), errno == ECONNRESET || errno == EPIPE);
    in_.append(bytes, static_cast<size_t>(n));
  }
  return *all = true, Status();
}

}  // namespace ringar
