// The codec between arrays and the wire. In one hop of a reduction it takes the partial result that
// has come, and adds this rank's own part.
//
// Bytes travel in the array's dtype, or float32 as float16 or bfloat16 (`wire=`). Each hop adds in
// float32 then, with this rank's part in full, and rounds once: n ranks round a sum n times. The
// last rank rounds, too, before it writes the result, since all others get it from the wire.
//
// Ranges are those of the buffer list, in bytes of its own dtype.

#pragma once

#include <cstddef>

#include "engine/buffer_list.h"
#include "engine/reduce.h"
#include "engine/spec.h"

namespace ringar {

class WireCodec {
 public:
  explicit WireCodec(const Spec& spec);
  // Of inputs that have been scaled already.
  WireCodec unscaled_inputs() const;

  DataType wire_dtype() const { return wire_; }
  size_t wire_bytes(size_t array_bytes) const { return array_bytes / element_ * wire_element_; }
  size_t array_bytes(size_t wire_bytes) const { return wire_bytes / wire_element_ * element_; }

  // Whole elements of the array's dtype to the wire, and back.
  void put(const std::byte* from, std::byte* wire, size_t array_bytes) const;
  void take(const std::byte* wire, std::byte* to, size_t array_bytes) const;

  // This rank's part, as the first one: inputs -> wire.
  void begin(const BufferList& array, size_t from, size_t to, std::byte* wire) const;
  // inputs + wire -> wire.
  void add(const BufferList& array, size_t from, size_t to, std::byte* wire) const;
  // inputs + wire, scaled for the last time -> wire, outputs.
  void add_last(const BufferList& array, size_t from, size_t to, std::byte* wire) const;
  // Scaled for the last time: wire -> wire, outputs.
  void end(const BufferList& array, size_t from, size_t to, std::byte* wire) const;
  // wire -> outputs.
  void deliver(const BufferList& array, size_t from, size_t to, const std::byte* wire) const;

  static constexpr size_t kTile = 16384;  // bytes of the array: stays in the first-level cache

 private:
  bool is_narrow() const { return wire_ != spec_.dtype; }
  void scale(const std::byte* from, std::byte* to, size_t bytes, double factor) const;
  void add(const std::byte* input, std::byte* wire, size_t bytes, double postscale) const;

  const Spec& spec_;
  double prescale_;
  DataType wire_;
  size_t element_, wire_element_;
};

}  // namespace ringar
