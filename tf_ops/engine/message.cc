#include "engine/message.h"

#include <algorithm>
#include <cstring>

#include "engine/copy.h"

namespace ringar {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kListed = 4;  // shapes in a text

// Either end's description of a message.
struct Label {
  int32_t process_set;
  DataType dtype;
  std::string_view name;
  std::vector<Shape> shapes;
};

size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

size_t dims_bytes(const Request& request) {
  size_t words = 0;
  for (const Tensor& tensor : request.tensors) words += 1 + static_cast<size_t>(tensor.shape.ndims);
  return words * sizeof(int64_t);
}

size_t begin_of_arrays(const Header& header) {
  return aligned(sizeof header + header.dims_bytes + header.name_bytes);
}

Label expected_by(const Request& request) {
  Label label{request.spec.process_set, request.spec.dtype, request.spec.name, {}};
  for (const Tensor& tensor : request.tensors) label.shapes.push_back(tensor.shape);
  return label;
}

Label label_of(const std::byte* message, const Header& header) {
  Label label{header.process_set, header.dtype, {}, {}};
  const std::byte* at = message + sizeof header;
  const auto next = [&] {
    int64_t word;
    std::memcpy(&word, at, sizeof word);
    at += sizeof word;
    return word;
  };
  for (uint32_t i = 0; i < header.arrays; ++i) {
    const int count = static_cast<int>(next());
    label.shapes.emplace_back(count, [&](int) { return next(); });
  }
  label.name = {reinterpret_cast<const char*>(at), header.name_bytes};
  return label;
}

bool fits(const Shape& expected, const Shape& received) {
  if (expected.ndims != received.ndims) return false;
  for (int i = 0; i < received.ndims; ++i)
    if (expected.dims[i] >= 0 && expected.dims[i] != received.dims[i]) return false;
  return true;
}

// The first array that does not fit, or how many there are.
size_t misfit(const Label& expected, const Label& received) {
  const size_t count = std::min(expected.shapes.size(), received.shapes.size());
  for (size_t i = 0; i < count; ++i)
    if (!fits(expected.shapes[i], received.shapes[i])) return i;
  return count;
}

std::string text_of(const Shape& shape) {
  std::string s = "[";
  for (int i = 0; i < shape.ndims; ++i)
    s += (i ? "," : "") + (shape.dims[i] < 0 ? std::string("?") : std::to_string(shape.dims[i]));
  return s + "]";
}

// Of many arrays the first ones, and the one that does not fit.
std::string text_of(const Label& label, size_t odd) {
  std::string s = label.name.empty() ? "" : " \"" + std::string(label.name) + "\"";
  s += " of ";
  const size_t count = label.shapes.size();
  for (size_t i = 0; i < count; ++i) {
    if (i >= kListed && i != odd) continue;
    s += (i ? ", " : "") + std::string(name_of(label.dtype)) + text_of(label.shapes[i]);
    if (i >= kListed) s += " as number " + std::to_string(i + 1);
  }
  if (count > kListed) s += " (" + std::to_string(count) + " arrays)";
  if (label.process_set) s += " in process set " + std::to_string(label.process_set);
  return s;
}

Status refusal(const Label& expected, const Label& received, int from, int to, size_t odd) {
  return {RINGAR_MISMATCH,
          "expected the same dtype, shapes, name and process set of a message at both of its ends, "
          "received\n  rank " +
              std::to_string(from) + ": send" + text_of(received, odd) + "\n  rank " +
              std::to_string(to) + ": recv" + text_of(expected, odd) +
              "\nMessages between two ranks arrive in the order in which they were sent: look "
              "for a branch, a loop or a shape that differs between the two ranks."};
}

}  // namespace

size_t message_bytes(const Request& request) {
  return aligned(sizeof(Header) + dims_bytes(request) + request.spec.name.size()) +
         request.input_bytes();
}

void write_message(const Request& request, uint64_t number, int generation, std::byte* to) {
  Header header{};
  header.number = number;
  header.generation = generation;
  header.process_set = request.spec.process_set;
  header.dtype = request.spec.dtype;
  header.arrays = static_cast<uint32_t>(request.tensors.size());
  header.dims_bytes = static_cast<uint32_t>(dims_bytes(request));
  header.name_bytes = static_cast<uint32_t>(request.spec.name.size());
  header.bytes = message_bytes(request);
  std::memcpy(to, &header, sizeof header);
  std::byte* at = to + sizeof header;
  const auto append = [&](const void* from, size_t bytes) {
    std::memcpy(at, from, bytes);
    at += bytes;
  };
  for (const Tensor& tensor : request.tensors) {
    const int64_t ndims = tensor.shape.ndims;
    append(&ndims, sizeof ndims);
    append(tensor.shape.dims, static_cast<size_t>(ndims) * sizeof(int64_t));
  }
  append(request.spec.name.data(), request.spec.name.size());
  at = to + begin_of_arrays(header);
  for (const Tensor& tensor : request.tensors) {
    const size_t bytes = static_cast<size_t>(tensor.shape.elements()) * request.element_size();
    if (bytes > 0) copy_to_shared(at, tensor.input, bytes);
    at += bytes;
  }
}

Status read_message(const std::byte* message, int from, int to, Request& request) {
  Header header;
  std::memcpy(&header, message, sizeof header);
  const Label expected = expected_by(request), received = label_of(message, header);
  const size_t odd = misfit(expected, received);
  if (expected.process_set != received.process_set || expected.dtype != received.dtype ||
      expected.name != received.name || odd < expected.shapes.size() ||
      odd < received.shapes.size())
    return refusal(expected, received, from, to, odd);
  const std::byte* at = message + begin_of_arrays(header);
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    Tensor& tensor = request.tensors[i];
    tensor.shape = received.shapes[i];
    const size_t bytes = static_cast<size_t>(tensor.shape.elements()) * request.element_size();
    if (!tensor.output) tensor.output = request.allocate(i, tensor.shape.rows());
    if (!tensor.output) return no_memory_for(bytes);
    if (bytes > 0) std::memcpy(tensor.output, at, bytes);
    at += bytes;
  }
  return {};
}

}  // namespace ringar
