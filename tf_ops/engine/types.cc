#include "engine/types.h"

#include <array>

namespace ringar {
namespace {

struct TypeInfo {
  std::string_view name;
  size_t size;
};

constexpr std::array<TypeInfo, static_cast<size_t>(DataType::kCount)> kTypes{{
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"int8", 1},
    {"uint8", 1},
    {"int32", 4},
    {"int64", 8},
    {"bool", 1},
    {"int16", 2},
    {"uint16", 2},
    {"uint32", 4},
    {"uint64", 8},
    {"complex64", 8},
    {"complex128", 16},
}};

constexpr std::array<std::string_view, static_cast<size_t>(ReduceOp::kCount)> kOps{
    "sum", "min", "max", "product"};

constexpr std::array<std::string_view, static_cast<size_t>(Collective::kCount)> kCollectives{
    "allreduce",   "reducescatter", "allgather", "broadcast",       "alltoall",
    "barrier",     "send",          "recv",      "add_process_set", "remove_process_set",
    "open_window", "close_window"};

constexpr std::array<std::string_view, static_cast<size_t>(Algorithm::kCount)> kAlgorithms{
    "auto", "ring", "recursive_doubling", "halving_doubling", "hierarchical"};

template <typename Enum, typename Names>
Enum find(const Names& names, std::string_view name) {
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<Enum>(i);
  return Enum::kCount;
}

}  // namespace

size_t size_of(DataType type) {
  return kTypes[static_cast<size_t>(type)].size;
}
std::string_view name_of(DataType type) {
  return kTypes[static_cast<size_t>(type)].name;
}
std::string_view name_of(ReduceOp op) {
  return kOps[static_cast<size_t>(op)];
}
std::string_view name_of(Collective collective) {
  return kCollectives[static_cast<size_t>(collective)];
}

std::string_view name_of(Algorithm algorithm) {
  return kAlgorithms[static_cast<size_t>(algorithm)];
}

DataType data_type_named(std::string_view name) {
  for (size_t i = 0; i < kTypes.size(); ++i)
    if (kTypes[i].name == name) return static_cast<DataType>(i);
  return DataType::kCount;
}
ReduceOp reduce_op_named(std::string_view name) {
  return find<ReduceOp>(kOps, name);
}
Collective collective_named(std::string_view name) {
  return find<Collective>(kCollectives, name);
}

Algorithm algorithm_named(std::string_view name) {
  return find<Algorithm>(kAlgorithms, name);
}

}  // namespace ringar
