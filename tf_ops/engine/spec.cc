#include "engine/spec.h"

#include <cstdlib>

namespace ringar {
namespace {

// Splits `text` at the first `separator`: returns what is before it and leaves what is after.
std::string_view take(std::string_view& text, char separator) {
  const size_t at = text.find(separator);
  const std::string_view head = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
  return head;
}

int64_t to_int(std::string_view text) {
  return std::strtoll(std::string(text).c_str(), nullptr, 10);
}
double to_double(std::string_view text) {
  return std::strtod(std::string(text).c_str(), nullptr);
}

std::vector<std::vector<int64_t>> to_shapes(std::string_view text) {
  std::vector<std::vector<int64_t>> shapes;
  for (bool more = true; more;) {
    more = text.find(';') != std::string_view::npos;
    std::string_view one = take(text, ';');
    auto& shape = shapes.emplace_back();
    while (!one.empty()) shape.push_back(to_int(take(one, ',')));
  }
  return shapes;
}

Status bad(std::string_view text) {
  return {RINGAR_MISMATCH, "expected a collective's spec as in engine/spec.h, received \"" +
                               std::string(text) + "\""};
}

}  // namespace

Status Spec::parse(std::string_view text, Spec* spec) {
  const std::string_view whole = text;
  spec->collective = collective_named(take(text, ' '));
  while (!text.empty()) {
    const std::string_view key = take(text, '=');
    if (key == "name") {
      spec->name = text;
      break;
    }
    const std::string_view value = take(text, ' ');
    if (key == "dtype")
      spec->dtype = data_type_named(value);
    else if (key == "op")
      spec->op = reduce_op_named(value);
    else if (key == "root")
      spec->root = static_cast<int32_t>(to_int(value));
    else if (key == "set")
      spec->process_set = static_cast<int32_t>(to_int(value));
    else if (key == "prescale")
      spec->prescale = to_double(value);
    else if (key == "postscale")
      spec->postscale = to_double(value);
    else if (key == "shapes")
      spec->shapes = to_shapes(value);
    else
      return bad(whole);
  }
  const bool known = spec->collective != Collective::kCount && spec->dtype != DataType::kCount &&
                     spec->op != ReduceOp::kCount;
  return known ? Status() : bad(whole);
}

}  // namespace ringar
