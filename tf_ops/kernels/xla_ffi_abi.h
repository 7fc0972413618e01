// The part of XLA's typed foreign function interface that ringar uses, declared here so that
// building needs no TensorFlow.
//
// tests/test_xla_ffi_abi.py compiles these declarations against <xla/ffi/api/c_api.h>.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ringar::ffi {

// The version that ringar's targets tell XLA. XLA refuses versions that it no longer has, before
// anything runs. 0.0, of TensorFlow 2.16, has other structs.
constexpr int kMajor = 0, kMinor = 1;

constexpr int kExtensionMetadata = 1, kAttrString = 4, kExecute = 3, kInternal = 13;

struct Error;
struct Context;

struct Extension {
  size_t struct_size;
  int type;
  Extension* next;
};

struct ApiVersion {
  size_t struct_size;
  Extension* extension;
  int major, minor;
};

struct ErrorCreateArgs {
  size_t struct_size = sizeof(ErrorCreateArgs);
  Extension* extension = nullptr;
  const char* message = nullptr;
  int code = kInternal;
};

struct ErrorDestroyArgs {
  size_t struct_size = sizeof(ErrorDestroyArgs);
  Extension* extension = nullptr;
  Error* error = nullptr;
};

struct Buffer {
  size_t struct_size;
  Extension* extension;
  int dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct Bytes {
  const char* data;
  size_t size;
};

// Operands or results.
struct Buffers {
  size_t struct_size;
  Extension* extension;
  int64_t size;
  int* types;
  Buffer** buffers;
};

struct Attrs {
  size_t struct_size;
  Extension* extension;
  int64_t size;
  int* types;
  Bytes** names;
  void** values;
};

struct Api;

struct CallFrame {
  size_t struct_size;
  Extension* extension;
  const Api* api;
  Context* context;
  int stage;
  Buffers operands, results;
  Attrs attrs;
};

using Handler = Error*(CallFrame*);

struct Bundle {
  Handler* instantiate = nullptr;
  Handler* prepare = nullptr;
  Handler* initialize = nullptr;
  Handler* execute = nullptr;
};

struct RegisterArgs {
  size_t struct_size = offsetof(RegisterArgs, traits) + sizeof(uint32_t);
  Extension* extension = nullptr;
  Bytes name{}, platform{};
  Bundle bundle{};
  uint32_t traits = 0;  // not compatible with command buffers
};

struct StreamGetArgs {
  size_t struct_size = sizeof(StreamGetArgs);
  Extension* extension = nullptr;
  Context* context = nullptr;
  void* stream = nullptr;
};

// Of which later versions have more.
struct Metadata {
  size_t struct_size;
  ApiVersion version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Api {
  size_t struct_size;
  Extension* extension;
  ApiVersion version;
  const void* internal;
  Error* (*error_create)(ErrorCreateArgs*);
  void* error_get_message;
  void (*error_destroy)(ErrorDestroyArgs*);
  Error* (*handler_register)(RegisterArgs*);
  Error* (*stream_get)(StreamGetArgs*);
};

}  // namespace ringar::ffi
