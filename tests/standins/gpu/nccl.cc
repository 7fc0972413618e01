// NCCL's functions on communicators: how they begin, are split, and end.

#include <cstring>
#include <map>

#include "communicator.h"
#include "driver.h"
#include "group.h"
#include "operation.h"

namespace standin {
namespace {

namespace nccl = ringar::nccl;

constexpr char kMagic[] = "standin";

// What a unique id has in it.
struct Identity {
  char magic[sizeof kMagic];
  Invitation invitation;
};
static_assert(sizeof(Identity) <= sizeof(nccl::UniqueId));

struct Redop {
  nccl::DataType type;
  const Communicator* communicator;
  Reduction reduction;
};

struct Redops {
  std::mutex mutex;
  nccl::RedOp next = 1000;
  std::map<nccl::RedOp, Redop> all;
};

// Never destroyed, as all that threads may use when the process ends.
Redops& redops() {
  static auto& instance = *new Redops;
  return instance;
}

nccl::Result refuse(const char* call, const std::string& why,
                    nccl::Result error = nccl::kInvalidArgument) {
  misuse(call, why);
  note_error(why);
  return error;
}

// NCCL reads the size first, for it differs between versions.
nccl::Result check_config(const char* call, const nccl::Config* config) {
  if (config->size != sizeof *config)
    return refuse(call, text("a config of %zu bytes", config->size));
  if (config->magic != nccl::Config().magic)
    return refuse(call, text("the magic of a config is %#x", config->magic));
  if (config->blocking != 0)
    return refuse(
        call, text("blocking is %d; communicators have to be nonblocking here", config->blocking));
  return nccl::kSuccess;
}

// Who is in the child, and in which order; then the same as at the begin of any communicator.
void split(Communicator& parent, int color, int key, nccl::Comm* child) {
  Header header = {};
  header.kind = Kind::kSplit;
  header.peer = -1;
  header.number = static_cast<uint64_t>(++parent.splits);
  header.color = color;
  header.key = key;
  if (!invite(&header.invitation)) return parent.fail(nccl::kSystemError, "no file for a split");
  std::vector<Header> all;
  const bool is_complete = exchange_headers(parent, header, &all);
  int first = -1, ranks = 0, rank = 0;
  for (int peer = 0; is_complete && peer < parent.ranks; ++peer) {
    const Header& other = all[static_cast<size_t>(peer)];
    if (other.color != color) continue;
    if (first < 0) first = peer;
    ++ranks;
    rank += other.key < key || (other.key == key && peer < parent.rank);
  }
  // All members come to where the first of them invites.
  if (first != parent.rank || color == nccl::kSplitNoColor) withdraw(header.invitation);
  if (!is_complete || color == nccl::kSplitNoColor) return;
  const auto communicator = std::make_shared<Communicator>(ranks, rank, parent.device);
  communicator->start([communicator, invitation = all[static_cast<size_t>(first)].invitation] {
    communicator->meet(invitation);
  });
  while (communicator->in_progress > 0) {
    if (parent.is_aborted) communicator->is_aborted = true;
    pause();
  }
  if (parent.is_aborted) return;
  if (const nccl::Result error = communicator->state()) return parent.fail(error, last_error());
  __atomic_store_n(child, communicators().add(communicator), __ATOMIC_RELEASE);
}

nccl::Result end(nccl::Comm comm, bool is_abort, const char* call) {
  if (!comm) return nccl::kSuccess;
  const auto communicator = communicators().remove(comm, call);
  if (!communicator) return nccl::kInvalidArgument;
  if (!is_abort && communicator->state() == nccl::kInProgress)
    misuse(call, "communicator used while it is in progress");
  else if (!is_abort && communicator->pending > 0)
    misuse(call, text("%d operations are under way", communicator->pending.load()));
  communicator->abort();
  forget_redops(*communicator);
  return nccl::kSuccess;
}

}  // namespace

std::shared_ptr<Communicator> find_ready(nccl::Comm comm, const char* call, nccl::Result* error) {
  const auto communicator = communicators().find(comm, call);
  *error = communicator ? communicator->state() : nccl::kInvalidArgument;
  if (*error == nccl::kInProgress)
    *error = refuse(call, "communicator used while it is in progress");
  else if (communicator && communicator->is_finalized && !*error)
    *error = refuse(call, "communicator used after it was finalized");
  return *error ? nullptr : communicator;
}

bool find_reduction(nccl::RedOp op, nccl::DataType type, const Communicator& communicator,
                    const char* call, Reduction* reduction) {
  reduction->op = op;
  if (op >= nccl::kSum && op <= nccl::kAvg) return true;
  const std::lock_guard<std::mutex> lock(redops().mutex);
  const auto it = redops().all.find(op);
  if (it == redops().all.end())
    misuse(call, text("%d %s operation", op,
                      op >= 1000 && op < redops().next ? "is a destroyed" : "is no"));
  else if (it->second.communicator != &communicator || it->second.type != type)
    misuse(call, text("operation %d is of another type or communicator", op));
  else
    *reduction = it->second.reduction;
  return reduction->has_factor;
}

void forget_redops(const Communicator& communicator) {
  const std::lock_guard<std::mutex> lock(redops().mutex);
  for (auto it = redops().all.begin(); it != redops().all.end();)
    it = it->second.communicator == &communicator ? redops().all.erase(it) : std::next(it);
}

size_t open_redops() {
  const std::lock_guard<std::mutex> lock(redops().mutex);
  return redops().all.size();
}

}  // namespace standin

namespace ringar::nccl {

using standin::communicators;
using standin::find_ready;
using standin::refuse;
using standin::text;

Result ncclGetVersion(int* version) {
  STANDIN_CALL(kInternalError);
  *version = standin::nccl_version();
  return kSuccess;
}

Result ncclGetUniqueId(UniqueId* id) {
  STANDIN_CALL(kInternalError);
  standin::Identity identity = {};
  std::memcpy(identity.magic, standin::kMagic, sizeof standin::kMagic);
  if (!standin::invite(&identity.invitation)) return kSystemError;
  *id = {};
  std::memcpy(id->internal, &identity, sizeof identity);
  return kSuccess;
}

Result ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank, Config* config) {
  STANDIN_CALL(kInternalError);
  const int device = standin::current_device();
  if (device < 0) return refuse(__func__, "no current context", kUnhandledCudaError);
  if (standin::in_group()) return refuse(__func__, "not in a group here", kInvalidUsage);
  if (ranks < 1 || ranks > standin::kMostRanks || rank < 0 || rank >= ranks)
    return refuse(__func__, text("rank %d of %d", rank, ranks));
  standin::Identity identity;
  std::memcpy(&identity, id.internal, sizeof identity);
  if (std::memcmp(identity.magic, standin::kMagic, sizeof standin::kMagic) != 0)
    return refuse(__func__, "the id is not of ncclGetUniqueId");
  if (!config) return refuse(__func__, "without a config a communicator is blocking");
  if (const Result error = standin::check_config(__func__, config)) return error;
  const auto communicator = std::make_shared<standin::Communicator>(ranks, rank, device);
  const bool never_ends = standin::fails_later(__func__);
  communicator->start([communicator, invitation = identity.invitation, never_ends] {
    if (never_ends) return communicator->fail_late("this communicator was to fail later");
    communicator->meet(invitation);
  });
  *comm = communicators().add(communicator);
  return kInProgress;
}

// It is the old communicator that is in progress; the new one is there when that is done.
Result ncclCommSplit(Comm comm, int color, int key, Comm* child, Config* config) {
  STANDIN_CALL(kInternalError);
  Result error = kSuccess;
  const auto parent = find_ready(comm, __func__, &error);
  if (error) return error;
  if (standin::in_group()) return refuse(__func__, "not in a group here", kInvalidUsage);
  if (color < 0 && color != kSplitNoColor) return refuse(__func__, text("color %d", color));
  if (config && (error = standin::check_config(__func__, config))) return error;
  if (const int pending = parent->pending)
    return refuse(__func__, text("%d operations are under way", pending), kInvalidUsage);
  *child = nullptr;
  const bool never_ends = standin::fails_later(__func__);
  parent->start([self = parent.get(), color, key, child, never_ends] {
    if (never_ends) return self->fail_late("this split was to fail later");
    standin::split(*self, color, key, child);
  });
  return kInProgress;
}

Result ncclCommFinalize(Comm comm) {
  STANDIN_CALL(kInternalError);
  Result error = kSuccess;
  const auto communicator = find_ready(comm, __func__, &error);
  if (error) return error;
  communicator->is_finalized = true;
  const bool never_ends = standin::fails_later(__func__);
  communicator->start([self = communicator.get(), never_ends] {
    if (never_ends) return self->wait_for_abort();
    self->finalize();
  });
  return kInProgress;
}

Result ncclCommDestroy(Comm comm) {
  STANDIN_CALL(kInternalError);
  return standin::end(comm, false, __func__);
}

Result ncclCommAbort(Comm comm) {
  STANDIN_CALL(kInternalError);
  return standin::end(comm, true, __func__);
}

Result ncclCommGetAsyncError(Comm comm, Result* error) {
  STANDIN_CALL(kInternalError);
  const auto communicator = communicators().find(comm, __func__);
  if (!communicator) return kInvalidArgument;
  *error = communicator->state();
  return kSuccess;
}

Result ncclRedOpCreatePreMulSum(RedOp* op, void* scalar, DataType type, int residence, Comm comm) {
  STANDIN_CALL(kInternalError);
  Result error = kSuccess;
  const auto communicator = find_ready(comm, __func__, &error);
  if (error) return error;
  const size_t size = standin::size_of(type);
  if (size == 0) return refuse(__func__, text("there is no type %d", type));
  if (residence != kScalarHostImmediate)
    return refuse(__func__, text("residence %d is not known here", residence));
  standin::Reduction reduction;
  reduction.has_factor = true;
  std::memcpy(reduction.factor, scalar, size);
  standin::Redops& all = standin::redops();
  const std::lock_guard<std::mutex> lock(all.mutex);
  *op = all.next++;
  all.all[*op] = {type, communicator.get(), reduction};
  return kSuccess;
}

Result ncclRedOpDestroy(RedOp op, Comm comm) {
  STANDIN_CALL(kInternalError);
  const auto communicator = communicators().find(comm, __func__);
  if (!communicator) return kInvalidArgument;
  standin::Redops& all = standin::redops();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto it = all.all.find(op);
  if (it == all.all.end() || it->second.communicator != communicator.get())
    return refuse(__func__, text("%d is no operation of this communicator", op));
  all.all.erase(it);
  return kSuccess;
}

}  // namespace ringar::nccl

extern "C" {

const char* ncclGetErrorString(int code) {
  static const char* const texts[] = {
      "no error",
      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
      "internal error - please report this issue to the NCCL developers",
      "invalid argument (run with NCCL_DEBUG=WARN for details)",
      "invalid usage (run with NCCL_DEBUG=WARN for details)",
      "remote process exited or there was a network error",
      "NCCL operation in progress",
  };
  return code >= 0 && code < 8 ? texts[code] : "unknown result code";
}

const char* ncclGetLastError(ringar::nccl::Comm) {
  return standin::lend(standin::last_error());
}

}  // extern "C"
