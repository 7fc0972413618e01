// The vocabulary of the engine: element types, reductions, collectives and messages.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ringar {

enum class DataType : uint8_t {
  // Reducible.
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kInt8,
  kUint8,
  kInt32,
  kInt64,
  // Moved, never reduced.
  kBool,
  kInt16,
  kUint16,
  kUint32,
  kUint64,
  kComplex64,
  kComplex128,
  kCount,
};

enum class ReduceOp : uint8_t { kSum, kMin, kMax, kProduct, kCount };

enum class Collective : uint8_t {
  kAllreduce,
  kReducescatter,
  kAllgather,
  kBroadcast,
  kAlltoall,
  kBarrier,
  kSend,  // messages from one rank to another; see point_to_point.h
  kRecv,
  kAddProcessSet,
  kRemoveProcessSet,
  kOpenWindow,  // an allgather of where the ranks have their parts; see window.h
  kCloseWindow,
  kCount,
};

// How an allreduce gets to the other ranks; see algorithms/.
enum class Algorithm : uint8_t {
  kAuto,
  kRing,
  kRecursiveDoubling,
  kHalvingDoubling,
  kHierarchical,
  kCount,
};

// Over all ranks alike, whether they share a host or not.
constexpr bool is_flat(Algorithm a) {
  return a == Algorithm::kRing || a == Algorithm::kRecursiveDoubling ||
         a == Algorithm::kHalvingDoubling;
}

constexpr bool is_reducible(DataType t) {
  return t <= DataType::kInt64;
}
constexpr bool is_floating(DataType t) {
  return t <= DataType::kFloat64;
}
constexpr bool reduces(Collective c) {
  return c == Collective::kAllreduce || c == Collective::kReducescatter;
}
constexpr bool is_message(Collective c) {
  return c == Collective::kSend || c == Collective::kRecv;
}
// Only the exchange then tells how many rows the output has.
constexpr bool rows_may_differ(Collective c) {
  return c == Collective::kAllgather || c == Collective::kAlltoall || c == Collective::kOpenWindow;
}

size_t size_of(DataType type);

std::string_view name_of(DataType type);
std::string_view name_of(ReduceOp op);
std::string_view name_of(Collective collective);
std::string_view name_of(Algorithm algorithm);

// The inverse of name_of; k…::kCount for a name that is none.
DataType data_type_named(std::string_view name);
ReduceOp reduce_op_named(std::string_view name);
Collective collective_named(std::string_view name);
Algorithm algorithm_named(std::string_view name);

}  // namespace ringar
