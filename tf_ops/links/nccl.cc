#include "links/nccl.h"

#include <dlfcn.h>

#include <cmath>
#include <cstring>
#include <mutex>
#include <utility>

#include "engine/reduce.h"
#include "engine/wait.h"
#include "links/library.h"

namespace ringar {
namespace {

constexpr double kLossKnown = 1;  // seconds

constexpr const char* kInstall =
    "Install one: pip install nvidia-nccl-cu12 (or -cu13 for CUDA 13), or name its file: "
    "RINGAR_NCCL_LIBRARY.";

struct NcclRemedy {
  const char *part, *text;
};

// By a part of what NCCL says of the last error.
constexpr NcclRemedy kNcclRemedies[] = {
    {"driver version is insufficient",
     "NCCL was built for a newer CUDA than the driver's: update NVIDIA's driver, or, for a driver "
     "of "
     "CUDA 12, pip install nvidia-nccl-cu12 in place of -cu13"},
    {"no kernel image",
     "This NCCL has no kernels for this GPU: install a newer one, or for an old GPU an older one, "
     "of 2.19 or later"},
    {"out of memory",
     "The GPU's memory is full: let TensorFlow grow (TF_FORCE_GPU_ALLOW_GROWTH=true), or give it a "
     "limit"},
    {"shared memory segment", "/dev/shm is too small: docker run --shm-size=1g, or --ipc=host"},
    {"Duplicate GPU", kOneGpuEach},
    {"Multiple Ranks", kOneGpuEach},
    {"NCCL_NVLS_ENABLE", "Unset NCCL_NVLS_ENABLE: ranks that share a GPU cannot use NVLink SHARP"},
};

// Where another NCCL was opened for all libraries, as in TensorFlow's wheels for GPUs, an NCCL that
// does not see its own functions first calls those of the other one.
Status refuse_another(const Nccl& nccl, int version, const std::string& file) {
  const auto first =
      reinterpret_cast<decltype(nccl.GetVersion.pointer())>(dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  int other = version;
  if (!first || first == nccl.GetVersion.pointer() || first(&other) != nccl::kSuccess ||
      other == version)
    return {};
  Dl_info place{};
  const bool has_place = dladdr(reinterpret_cast<void*>(first), &place) != 0 && place.dli_fname;
  const std::string other_file = has_place ? place.dli_fname : "of this process";
  // The remedy comes first: the text that the other ranks get is cut.
  return {RINGAR_UNSUPPORTED,
          "expected NCCL " + version_text(other) +
              " (pip install nvidia-nccl-cu12==" + version_text(other) +
              ", or -cu13; or let ringar open NCCL before other code does, without an allocator by "
              "LD_PRELOAD), received " +
              version_text(version) + " (" + file + "), which would call functions of " +
              version_text(other) + " (" + other_file + ")"};
}

Status open_library(const std::string& file, Nccl* nccl) {
  Library library("NVIDIA's NCCL", kInstall);
  const std::string name = file.empty() ? "libnccl.so.2" : file;
  RINGAR_RETURN_IF_ERROR(library.open(name));
#define RINGAR_FIND(name, exported, arguments) nccl->name.bind(#exported, library.find(#exported));
  RINGAR_NCCL_FUNCTIONS(RINGAR_FIND)
#undef RINGAR_FIND
  nccl->GetErrorString =
      reinterpret_cast<decltype(nccl->GetErrorString)>(library.find("ncclGetErrorString"));
  nccl->GetLastError =
      reinterpret_cast<decltype(nccl->GetLastError)>(library.find("ncclGetLastError"));

  int version = 0;
  if (nccl->GetVersion.pointer() && nccl->GetErrorString && nccl->GetLastError)
    RINGAR_RETURN_IF_ERROR(RINGAR_NCCL(*nccl, GetVersion, &version));
  // Before what it lacks: the version tells why.
  if (version > 0 && version < nccl::kOldestVersion)
    return {RINGAR_UNSUPPORTED, "expected NCCL " + version_text(nccl::kOldestVersion) +
                                    " or later, received " + version_text(version) + " (" + name +
                                    "). " + kInstall};
  RINGAR_RETURN_IF_ERROR(library.complete());
  nccl->version = version;
  return library.calls_itself() ? Status() : refuse_another(*nccl, version, name);
}

// The factor in the arrays' dtype: a 1 of it, scaled.
void scaled_one(DataType type, double factor, std::byte* scalar) {
  constexpr uint16_t kOneFloat16 = 0x3c00, kOneBfloat16 = 0x3f80;
  const float one32 = 1;
  const double one64 = 1;
  const void* unit = &one32;
  if (type == DataType::kFloat16) unit = &kOneFloat16;
  if (type == DataType::kBfloat16) unit = &kOneBfloat16;
  if (type == DataType::kFloat64) unit = &one64;
  const auto* const source = static_cast<const std::byte*>(unit);
  reduce({type, ReduceOp::kSum, factor}, &source, 1, scalar, 1);
}

nccl::Config nonblocking() {
  nccl::Config config;
  config.blocking = 0;
  return config;
}

// Where NCCL writes a new communicator, for a split at some later time.
struct Slot : std::unique_ptr<nccl::Comm> {
  Slot() : unique_ptr(std::make_unique<nccl::Comm>(nullptr)) {}
  bool is_filled() const { return __atomic_load_n(get(), __ATOMIC_ACQUIRE) != nullptr; }
};

nccl::RedOp plain(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return nccl::kMin;
    case ReduceOp::kMax:
      return nccl::kMax;
    case ReduceOp::kProduct:
      return nccl::kProd;
    default:
      return nccl::kSum;
  }
}

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Status Nccl::check(const char* call, nccl::Result result, nccl::Comm comm) const {
  // In progress: settle() sees how it ends.
  if (result == nccl::kSuccess || result == nccl::kInProgress) return {};
  const char* const detail = GetLastError(comm);
  std::string text = std::string(call) + " failed with " + GetErrorString(result) + " (" +
                     std::to_string(result) + ")";
  if (!detail || !*detail) return {RINGAR_DEVICE, text};
  text += ": " + std::string(detail);
  for (const NcclRemedy& remedy : kNcclRemedies)
    if (std::strstr(detail, remedy.part)) text += std::string(". ") + remedy.text;
  return {RINGAR_DEVICE, text};
}

Status open_nccl(const std::string& library, const Nccl** functions) {
  static std::mutex mutex;
  static Nccl table;
  static bool opened = false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!opened) RINGAR_RETURN_IF_ERROR(open_library(library, &table));
  opened = true;
  *functions = &table;
  return {};
}

nccl::DataType nccl_type(DataType type) {
  switch (type) {
    case DataType::kFloat16:
      return nccl::kFloat16;
    case DataType::kBfloat16:
      return nccl::kBfloat16;
    case DataType::kFloat32:
      return nccl::kFloat32;
    case DataType::kFloat64:
      return nccl::kFloat64;
    case DataType::kInt8:
      return nccl::kInt8;
    case DataType::kUint8:
      return nccl::kUint8;
    case DataType::kInt32:
      return nccl::kInt32;
    case DataType::kInt64:
      return nccl::kInt64;
    default:
      break;
  }
  RINGAR_CHECK(!"a reduction of a dtype that NCCL does not reduce");
  return nccl::kInt8;
}

Status NcclCommunicator::create(const Nccl& nccl, const nccl::UniqueId& id, int ranks, int rank,
                                const Wait& wait, std::unique_ptr<NcclCommunicator>* communicator) {
  nccl::Config config = nonblocking();
  const Slot slot;
  const nccl::Result result = nccl.CommInitRankConfig(slot.get(), ranks, id, rank, &config);
  communicator->reset(new NcclCommunicator(nccl, *slot));
  return (*communicator)->settle("ncclCommInitRankConfig", result, wait);
}

Status NcclCommunicator::split(int color, int key, const Wait& wait,
                               std::unique_ptr<NcclCommunicator>* communicator) {
  nccl::Config config = nonblocking();
  Slot slot;
  const nccl::Result result = nccl_.CommSplit(comm_, color, key, slot.get(), &config);
  Status settled = settle("ncclCommSplit", result, wait);
  const auto is_filled = [&](bool* done) -> Status {
    *done = color == nccl::kSplitNoColor || slot.is_filled();
    return {};
  };
  if (settled.ok()) settled = wait_until(Rest::for_gpu(), nullptr, is_filled, wait);
  if (!settled.ok()) slot.release();  // NCCL may still be about to write it
  RINGAR_RETURN_IF_ERROR(settled);
  if (color == nccl::kSplitNoColor) return {};
  communicator->reset(new NcclCommunicator(nccl_, *slot));
  return (*communicator)->settle("ncclCommSplit", nccl::kInProgress, wait);
}

bool nccl_has_factor(DataType type, double factor) {
  if (type == DataType::kFloat64) return true;
  alignas(8) std::byte scalar[8];
  scaled_one(type, factor, scalar);
  float rounded = 0;
  if (type == DataType::kFloat32)
    std::memcpy(&rounded, scalar, sizeof rounded);
  else
    convert(type, DataType::kFloat32, scalar, reinterpret_cast<std::byte*>(&rounded), 1);
  return (rounded != 0 || factor == 0) && (std::isfinite(rounded) || !std::isfinite(factor));
}

// A call has succeeded when the communicator says so. Most return "in progress" before that, some
// success in some versions.
Status NcclCommunicator::settle(const char* call, nccl::Result result, const Wait& wait) {
  if (result == nccl::kSuccess) result = nccl::kInProgress;
  const auto look = [&](bool* done) -> Status {
    if (result == nccl::kInProgress && comm_)
      RINGAR_RETURN_IF_ERROR(
          nccl_.check("ncclCommGetAsyncError", nccl_.CommGetAsyncError(comm_, &result), comm_));
    *done = result != nccl::kInProgress || !comm_;
    return {};
  };
  RINGAR_RETURN_IF_ERROR(wait_until(Rest::for_gpu(), nullptr, look, wait));
  const Status settled = nccl_.check(call, result, comm_);
  if (result != nccl::kRemoteError && result != nccl::kSystemError) return settled;
  // NCCL sees the end of a connection before anybody knows which rank was lost.
  Status loss;
  (void)wait_at_most(kLossKnown, Rest::for_gpu(), [&] { return !(loss = wait()).ok(); });
  return loss.ok() ? settled : Status(loss.code(), loss.message() + "; " + settled.message());
}

// The group is ended in any case: NCCL counts starts and ends for the thread.
Status NcclCommunicator::group(const std::function<Status()>& calls, const Wait& wait) {
  RINGAR_RETURN_IF_ERROR(RINGAR_NCCL(nccl_, GroupStart));
  const Status called = calls();
  const nccl::Result result = nccl_.GroupEnd();
  RINGAR_RETURN_IF_ERROR(called);
  return settle("ncclGroupEnd", result, wait);
}

Status NcclCommunicator::acquire(ReduceOp op, DataType type, double factor, nccl::RedOp* result) {
  *result = plain(op);
  if (factor == 1.0) return {};
  alignas(8) std::byte scalar[8];
  scaled_one(type, factor, scalar);
  return nccl_.check("ncclRedOpCreatePreMulSum",
                     nccl_.RedOpCreatePreMulSum(result, scalar, nccl_type(type),
                                                nccl::kScalarHostImmediate, comm_),
                     comm_);
}

void NcclCommunicator::release(nccl::RedOp op) {
  if (op > nccl::kAvg) nccl_.RedOpDestroy(op, comm_);
}

Status NcclCommunicator::asynchronous_error() {
  if (!comm_) return {};
  nccl::Result result = nccl::kSuccess;
  RINGAR_RETURN_IF_ERROR(
      nccl_.check("ncclCommGetAsyncError", nccl_.CommGetAsyncError(comm_, &result), comm_));
  return nccl_.check("NCCL", result, comm_);
}

Status NcclCommunicator::finalize(const Wait& wait) {
  return settle("ncclCommFinalize", nccl_.CommFinalize(comm_), wait);
}

Status NcclCommunicator::destroy() {
  return nccl_.check("ncclCommDestroy", nccl_.CommDestroy(std::exchange(comm_, nullptr)));
}

void NcclCommunicator::abort() {
  if (comm_) nccl_.CommAbort(comm_);
  comm_ = nullptr;
}

}  // namespace ringar
