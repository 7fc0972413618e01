#include "algorithms/wire_codec.h"

#include <algorithm>
#include <cstring>

namespace ringar {

WireCodec::WireCodec(const Spec& spec)
    : spec_(spec),
      prescale_(spec.prescale),
      wire_(spec.wire == DataType::kCount ? spec.dtype : spec.wire),
      element_(size_of(spec.dtype)),
      wire_element_(size_of(wire_)) {}

WireCodec WireCodec::unscaled_inputs() const {
  WireCodec codec = *this;
  codec.prescale_ = 1.0;
  return codec;
}

void WireCodec::put(const std::byte* from, std::byte* wire, size_t bytes) const {
  if (is_narrow())
    convert(spec_.dtype, wire_, from, wire, bytes / element_);
  else
    std::memcpy(wire, from, bytes);
}

void WireCodec::take(const std::byte* wire, std::byte* to, size_t bytes) const {
  if (is_narrow())
    convert(wire_, spec_.dtype, wire, to, bytes / element_);
  else
    std::memcpy(to, wire, bytes);
}

void WireCodec::scale(const std::byte* from, std::byte* to, size_t bytes, double factor) const {
  reduce({spec_.dtype, spec_.op, factor, 1.0}, &from, 1, to, bytes / element_);
}

void WireCodec::add(const std::byte* input, std::byte* wire, size_t bytes, double postscale) const {
  const Reduction reduction{spec_.dtype, spec_.op, 1.0, postscale};
  if (prescale_ == 1.0 && !is_narrow()) {
    const std::byte* const sources[] = {wire, input};
    return reduce(reduction, sources, 2, wire, bytes / element_);
  }
  alignas(64) std::byte came[kTile], tile[kTile];
  for (size_t at = 0; at < bytes; at += kTile) {
    const size_t n = std::min(kTile, bytes - at);
    std::byte* const place = wire + wire_bytes(at);
    take(place, came, n);
    if (prescale_ != 1.0) scale(input + at, tile, n, prescale_);
    const std::byte* const sources[] = {came, prescale_ == 1.0 ? input + at : tile};
    reduce(reduction, sources, 2, came, n / element_);
    put(came, place, n);
  }
}

void WireCodec::begin(const BufferList& array, size_t from, size_t to, std::byte* wire) const {
  array.for_each(from, to, [&](const std::byte* input, std::byte*, size_t bytes, size_t offset) {
    alignas(64) std::byte scaled[kTile];
    if (prescale_ == 1.0) return put(input, wire + wire_bytes(offset), bytes);
    for (size_t at = 0; at < bytes; at += kTile) {
      const size_t n = std::min(kTile, bytes - at);
      scale(input + at, scaled, n, prescale_);
      put(scaled, wire + wire_bytes(offset + at), n);
    }
  });
}

void WireCodec::add(const BufferList& array, size_t from, size_t to, std::byte* wire) const {
  array.for_each(from, to, [&](const std::byte* input, std::byte*, size_t bytes, size_t offset) {
    add(input, wire + wire_bytes(offset), bytes, 1.0);
  });
}

void WireCodec::add_last(const BufferList& array, size_t from, size_t to, std::byte* wire) const {
  array.for_each(from, to,
                 [&](const std::byte* input, std::byte* output, size_t bytes, size_t offset) {
                   std::byte* const place = wire + wire_bytes(offset);
                   add(input, place, bytes, spec_.postscale);
                   take(place, output, bytes);
                 });
}

void WireCodec::end(const BufferList& array, size_t from, size_t to, std::byte* wire) const {
  array.for_each(from, to, [&](const std::byte*, std::byte* output, size_t bytes, size_t offset) {
    std::byte* const place = wire + wire_bytes(offset);
    take(place, output, bytes);
    if (spec_.postscale == 1.0) return;
    scale(output, output, bytes, spec_.postscale);
    put(output, place, bytes);
    if (is_narrow()) take(place, output, bytes);
  });
}

void WireCodec::deliver(const BufferList& array, size_t from, size_t to,
                        const std::byte* wire) const {
  array.for_each(from, to, [&](const std::byte*, std::byte* output, size_t bytes, size_t offset) {
    take(wire + wire_bytes(offset), output, bytes);
  });
}

}  // namespace ringar
