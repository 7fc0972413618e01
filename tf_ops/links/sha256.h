// SHA-256 (FIPS 180-4) and HMAC (RFC 2104) of it: enough to prove that one knows a secret, without
// a library of cryptography in every wheel.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ringar {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::string_view text);
Digest hmac_sha256(std::string_view key, std::string_view text);

// Takes as long whether the digests differ early or late.
bool equal_digests(const Digest& a, const Digest& b);

}  // namespace ringar
