#include "engine/spec.h"

#include <locale.h>
#include <stdlib.h>

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
  return strtoll(std::string(text).c_str(), nullptr, 10);
}

bool read(std::string_view text, int32_t* number) {
  const std::string digits(text);
  char* end = nullptr;
  *number = static_cast<int32_t>(strtol(digits.c_str(), &end, 10));
  return !digits.empty() && *end == '\0';
}

// Not strtod: in a locale that writes 0,5 it reads 0.5 as 0.
bool read(std::string_view text, double* number) {
  static const locale_t c_locale = newlocale(LC_ALL_MASK, "C", nullptr);
  const std::string digits(text);
  char* end = nullptr;
  *number = strtod_l(digits.c_str(), &end, c_locale);
  return !digits.empty() && *end == '\0';
}

std::vector<std::vector<int64_t>> to_shapes(std::string_view text) {
  std::vector<std::vector<int64_t>> shapes;
  for (bool has_more = true; has_more;) {
    has_more = text.find(';') != std::string_view::npos;
    std::string_view shape_text = take(text, ';');
    auto& shape = shapes.emplace_back();
    while (!shape_text.empty()) shape.push_back(to_int(take(shape_text, ',')));
  }
  return shapes;
}

Status refusal(std::string_view text) {
  return {RINGAR_MISMATCH, "expected a collective's spec as in engine/spec.h, received \"" +
                               std::string(text) + "\""};
}

}  // namespace

Status Spec::parse(std::string_view text, Spec* spec) {
  const std::string_view line = text;
  spec->collective = collective_named(take(text, ' '));
  bool good = true;
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
      good &= read(value, &spec->root);
    else if (key == "set")
      good &= read(value, &spec->process_set);
    else if (key == "prescale")
      good &= read(value, &spec->prescale);
    else if (key == "postscale")
      good &= read(value, &spec->factor);
    else if (key == "wire")
      good &= (spec->wire = data_type_named(value)) != DataType::kCount;
    else if (key == "algorithm")
      good &= (spec->algorithm = algorithm_named(value)) != Algorithm::kCount;
    else if (key == "shares")
      good &= read(value, &spec->shares) && spec->shares >= 0;
    else if (key == "tag")
      good &= read(value, &spec->tag) && is_tag(spec->tag);
    else if (key == "mean")
      good &= read(value, &spec->mean);
    else if (key == "world")
      good &= read(value, &spec->world) && spec->world >= 0;
    else if (key == "shapes")
      spec->shapes = to_shapes(value);
    else
      return refusal(line);
  }
  spec->postscale = spec->factor;
  const bool names_are_valid = spec->collective != Collective::kCount &&
                               spec->dtype != DataType::kCount && spec->op != ReduceOp::kCount;
  return names_are_valid && good ? Status() : refusal(line);
}

}  // namespace ringar
