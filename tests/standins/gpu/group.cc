// NCCL's collectives and messages, alone or in groups, on their way to the streams.

#include "group.h"

#include <time.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "driver.h"
#include "operation.h"
#include "per_thread.h"

namespace standin {
namespace {

namespace nccl = ringar::nccl;

std::atomic<int> groups{0};

// The group of a thread.
struct Group {
  int depth = 0;
  nccl::Result error = nccl::kSuccess;  // of a call in it: the whole group fails
  std::vector<std::shared_ptr<Operation>> operations;

  ~Group() {
    if (depth > 0) misuse("ncclGroupStart", "a thread ended in a group");
  }
};

Group& group() {
  static auto& all = *new PerThread<Group>;
  return *all;
}

void begin_group() {
  if (group().depth++ == 0) ++groups;
}

// A moment later, in another thread, as where NCCL has to prepare something.
void launch(std::vector<std::shared_ptr<Operation>> operations) {
  for (const auto& operation : operations) {
    ++operation->communicator->in_progress;
    ++operation->communicator->pending;
    ++operation->stream->announced;
    operation->number = operation->communicator->called++;
  }
  stay();
  std::thread([operations = std::move(operations)] {
    const timespec moment = {0, 1'000'000};
    nanosleep(&moment, nullptr);
    for (const auto& operation : operations) {
      operation->stream->enqueue([operation] { operation->run(); });
      --operation->stream->announced;
    }
    for (const auto& operation : operations) --operation->communicator->in_progress;
  }).detach();
}

nccl::Result end_group(bool never_ends) {
  if (--group().depth > 0) return nccl::kSuccess;
  --groups;
  std::vector<std::shared_ptr<Operation>> operations = std::move(group().operations);
  const nccl::Result error = std::exchange(group().error, nccl::kSuccess);
  group().operations.clear();
  if (error || operations.empty()) return error;
  for (const auto& operation : operations) operation->never_ends |= never_ends;
  launch(std::move(operations));
  return nccl::kInProgress;
}

nccl::Result add(const Call& call, nccl::Comm comm, nccl::Stream stream, const char* name) {
  nccl::Result error = nccl::kSuccess;
  const auto communicator = find_ready(comm, name, &error);
  if (error) return error;
  const auto refuse = [&](const std::string& why) {
    misuse(name, why);
    note_error(why);
    return nccl::kInvalidArgument;
  };
  if (size_of(call.type) == 0) return refuse(text("there is no type %d", call.type));
  if (call.kind > Kind::kAllReduce && call.kind != Kind::kReduceScatter &&
      call.kind != Kind::kAllGather && (call.peer < 0 || call.peer >= communicator->ranks))
    return refuse(text("rank %d of %d", call.peer, communicator->ranks));
  const auto queue = find_stream(stream, communicator->device, name);
  if (!queue) return nccl::kInvalidArgument;
  if (queue->device != communicator->device)
    return refuse(text("a stream of device %d, with a communicator of device %d", queue->device,
                       communicator->device));
  must_rest(*queue, name);
  Call entry = call;
  if (call.kind <= Kind::kReduceScatter &&
      !find_reduction(call.reduction.op, call.type, *communicator, name, &entry.reduction))
    return nccl::kInvalidArgument;
  auto& operations = group().operations;
  auto operation = std::find_if(operations.begin(), operations.end(), [&](const auto& candidate) {
    return candidate->communicator == communicator;
  });
  if (operation == operations.end())
    operation = operations.insert(operation, std::make_shared<Operation>(communicator, queue));
  if ((*operation)->stream != queue) return refuse("several streams in a group, which is not here");
  (*operation)->calls.push_back(entry);
  (*operation)->never_ends |= fails_later(name);
  return nccl::kSuccess;
}

// A call alone is a group of one.
nccl::Result call(const char* name, Kind kind, const void* in, void* out, size_t count,
                  nccl::DataType type, nccl::RedOp op, int peer, nccl::Comm comm,
                  nccl::Stream stream) {
  if (group().depth == 0 && kind >= Kind::kSend) {
    misuse(name, "a message outside of a group");
    return nccl::kInvalidUsage;
  }
  Call request = {};
  request.kind = kind;
  request.in = static_cast<const std::byte*>(in);
  request.out = static_cast<std::byte*>(out);
  request.count = count;
  request.type = type;
  request.reduction.op = op;
  request.peer = peer;
  begin_group();
  const nccl::Result error = add(request, comm, stream, name);
  if (error) group().error = error;
  const nccl::Result outcome = end_group(false);
  return error ? error : outcome;
}

// A call that fails fails its group.
nccl::Result failed() {
  if (group().depth > 0) group().error = nccl::kInternalError;
  return nccl::kInternalError;
}

}  // namespace

bool in_group() {
  return group().depth > 0;
}
size_t open_groups() {
  return static_cast<size_t>(groups);
}

}  // namespace standin

namespace ringar::nccl {

using standin::call;
using standin::Kind;

Result ncclAllReduce(const void* in, void* out, size_t count, DataType type, RedOp op, Comm comm,
                     Stream s) {
  STANDIN_CALL(standin::failed());
  return call(__func__, Kind::kAllReduce, in, out, count, type, op, -1, comm, s);
}

Result ncclReduce(const void* in, void* out, size_t count, DataType type, RedOp op, int root,
                  Comm comm, Stream s) {
  STANDIN_CALL(standin::failed());
  return call(__func__, Kind::kReduce, in, out, count, type, op, root, comm, s);
}

Result ncclReduceScatter(const void* in, void* out, size_t count, DataType type, RedOp op,
                         Comm comm, Stream s) {
  STANDIN_CALL(standin::failed());
  return call(__func__, Kind::kReduceScatter, in, out, count, type, op, -1, comm, s);
}

Result ncclAllGather(const void* in, void* out, size_t count, DataType type, Comm comm, Stream s) {
  STANDIN_CALL(standin::failed());
  return call(__func__, Kind::kAllGather, in, out, count, type, kSum, -1, comm, s);
}

Result ncclBroadcast(const void* in, void* out, size_t count, DataType type, int root, Comm comm,
                     Stream s) {
  STANDIN_CALL(standin::failed());
  return call(__func__, Kind::kBroadcast, in, out, count, type, kSum, root, comm, s);
}

Result ncclSend(const void* data, size_t count, DataType type, int to, Comm comm, Stream s) {
  STANDIN_CALL(standin::failed());
  return call(__func__, Kind::kSend, data, nullptr, count, type, kSum, to, comm, s);
}

Result ncclRecv(void* data, size_t count, DataType type, int from, Comm comm, Stream s) {
  STANDIN_CALL(standin::failed());
  return call(__func__, Kind::kRecv, nullptr, data, count, type, kSum, from, comm, s);
}

Result ncclGroupStart() {
  STANDIN_CALL(kInternalError);
  standin::begin_group();
  return kSuccess;
}

Result ncclGroupEnd() {
  const Result failed =
      standin::fails(__func__) ? standin::code_of_failure(__func__, standin::failed()) : kSuccess;
  if (!standin::in_group()) standin::misuse(__func__, "there is no group");
  if (!standin::in_group()) return kInvalidUsage;
  const Result outcome = standin::end_group(standin::fails_later(__func__));
  return failed ? failed : outcome;
}

}  // namespace ringar::nccl
