// An allreduce of GPUs on several hosts without a fast network between GPUs: NCCL inside each host,
// ringar's own allreduce between them.
//
// The bucket is cut into blocks, and a block into one slice per rail (communicator.h): each host
// has a rank in every rail. Of block k, in ringar's stream and on the rank's thread,
//
//   GPU     ncclReduce: each rank of a rail has the host's sum of its slice | copy to the host
//   host    wait for the copy | allreduce in the rail, in the host's memory
//   GPU     copy back | ncclBroadcast: each rank of a rail gives its slice to the host's ranks
//
// The GPU reduces block k+1 while the hosts exchange block k, with two buffers of one slice each. A
// host sends and receives 2 (h-1)/h K bytes for h hosts, however many ranks it has, as with arrays
// in its own memory (hierarchical.cc). The call returns when the last of these has ended: unlike
// NCCL's collectives, this one blocks its thread.
//
// The sum of a host is NCCL's, in the arrays' dtype; between hosts float16 and bfloat16 are added
// in float32, and `wire=` compresses float32.

#include <algorithm>

#include "algorithms/between_hosts.h"
#include "algorithms/on_gpus.h"
#include "engine/buffer_list.h"
#include "engine/wait.h"

namespace ringar {
namespace {

constexpr size_t kSliceBytes = size_t{4} << 20;
constexpr size_t kSliceAlignment = 64;

class Hierarchy {
 public:
  Hierarchy(Communicator& c, const Request& request)
      : c_(c),
        gpu_(*c.world().gpu),
        gpus_(*c.gpus_here()),
        spec_(request.spec),
        rails_(static_cast<size_t>(c.rails())) {
    spec_.prescale = spec_.postscale = 1;
    for (const Tensor& t : request.tensors)
      array_.append(t.input, t.output,
                    static_cast<size_t>(t.shape.elements()) * request.element_size());
    const size_t even = (array_.size() + rails_ - 1) / rails_;
    slice_ = std::clamp((even + kSliceAlignment - 1) / kSliceAlignment * kSliceAlignment,
                        kSliceAlignment, kSliceBytes);
  }

  // To be called before the group is locked, since it may wait for collectives under way.
  Status prepare() {
    gpu_.watch().make_room();
    for (size_t i = 0; i < 2; ++i) RINGAR_RETURN_IF_ERROR(gpu_.staging(i, slice_, &staging_[i]));
    return {};
  }

  Status run(nccl::RedOp op) {
    op_ = op;
    const size_t blocks = (array_.size() + block() - 1) / block();
    if (blocks > 0) RINGAR_RETURN_IF_ERROR(reduce_here(0));
    for (size_t k = 0; k < blocks; ++k) {
      if (k + 1 < blocks) RINGAR_RETURN_IF_ERROR(reduce_here(k + 1));
      RINGAR_RETURN_IF_ERROR(reduce_between_hosts(k));
      RINGAR_RETURN_IF_ERROR(spread_here(k));
    }
    return {};
  }

 private:
  size_t block() const { return slice_ * rails_; }
  size_t begin(size_t k, size_t rail) const {
    return std::min(array_.size(), k * block() + rail * slice_);
  }
  size_t end(size_t k, size_t rail) const { return begin(k, rail) + bytes(k, rail); }
  size_t bytes(size_t k, size_t rail) const {
    return std::min(slice_, array_.size() - begin(k, rail));
  }
  bool has_slice() const { return static_cast<size_t>(gpus_.rank()) < rails_; }
  size_t own_bytes(size_t k) const {
    return has_slice() ? bytes(k, static_cast<size_t>(gpus_.rank())) : 0;
  }
  Gpu::Staging& staging(size_t k) const { return *staging_[k % 2]; }

  // Calls visit(input, output, bytes, place in the slice, rail) for each part of a block.
  template <typename Visit>
  Status for_each_part(size_t k, Visit visit) const {
    Status status;
    for (size_t rail = 0; rail < rails_; ++rail)
      array_.for_each(begin(k, rail), end(k, rail),
                      [&](const std::byte* input, std::byte* output, size_t n, size_t at) {
                        if (status.ok()) status = visit(input, output, n, at, rail);
                      });
    return status;
  }

  Status reduce_here(size_t k) {
    const nccl::Comm comm = gpus_.communicator().handle();
    const size_t element = size_of(spec_.dtype);
    const auto calls = [&] {
      return for_each_part(k, [&](const std::byte* input, std::byte*, size_t n, size_t at,
                                  size_t rail) {
        const bool owns_rail = static_cast<int>(rail) == gpus_.rank();
        return RINGAR_NCCL(gpu_.nccl(), Reduce, input, owns_rail ? staging(k).device + at : nullptr,
                           n / element, nccl_type(spec_.dtype), op_, static_cast<int>(rail), comm,
                           gpu_.stream());
      });
    };
    RINGAR_RETURN_IF_ERROR(gpus_.communicator().group(calls, gpus_.watchdog()));
    if (own_bytes(k) == 0) return {};
    RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(gpu_.driver(), MemcpyDtoHAsync, staging(k).host,
                                       reinterpret_cast<cuda::Pointer>(staging(k).device),
                                       own_bytes(k), gpu_.stream()));
    return RINGAR_CUDA(gpu_.driver(), EventRecord, staging(k).arrived, gpu_.stream());
  }

  Status reduce_between_hosts(size_t k) {
    if (own_bytes(k) == 0) return {};
    const auto still_well = gpus_.watchdog();
    const auto look = [&](bool* done) -> Status {
      const cuda::Result arrived = gpu_.driver().EventQuery(staging(k).arrived);
      *done = arrived != cuda::kNotReady;
      return *done ? gpu_.driver().check("cuEventQuery", arrived) : Status();
    };
    RINGAR_RETURN_IF_ERROR(wait_until(Rest::for_gpu(), nullptr, look, [&]() -> Status {
      RINGAR_RETURN_IF_ERROR(still_well());
      return gpus_.communicator().asynchronous_error();
    }));
    BufferList slice;
    slice.append(staging(k).host, staging(k).host, own_bytes(k));
    return long_allreduce(c_, *c_.rail(), long_way(c_, rails_ * slice.size()), spec_, slice);
  }

  Status spread_here(size_t k) {
    if (own_bytes(k) > 0)
      RINGAR_RETURN_IF_ERROR(RINGAR_CUDA(gpu_.driver(), MemcpyHtoDAsync,
                                         reinterpret_cast<cuda::Pointer>(staging(k).device),
                                         staging(k).host, own_bytes(k), gpu_.stream()));
    const nccl::Comm comm = gpus_.communicator().handle();
    const auto calls = [&] {
      return for_each_part(
          k, [&](const std::byte*, std::byte* output, size_t n, size_t at, size_t rail) {
            const bool owns_rail = static_cast<int>(rail) == gpus_.rank();
            return RINGAR_NCCL(gpu_.nccl(), Broadcast, owns_rail ? staging(k).device + at : output,
                               output, n, nccl::kInt8, static_cast<int>(rail), comm, gpu_.stream());
          });
    };
    return gpus_.communicator().group(calls, gpus_.watchdog());
  }

  Communicator& c_;
  Gpu& gpu_;
  GpuCommunicator& gpus_;
  Spec spec_;  // of what travels between hosts
  nccl::RedOp op_ = nccl::kSum;
  const size_t rails_;
  BufferList array_;
  size_t slice_ = 0;
  Gpu::Staging* staging_[2] = {};
};

}  // namespace

Status enqueue_hierarchical(Communicator& c, const Request& request,
                            const std::shared_ptr<Enqueued>& entry) {
  Gpu& gpu = *c.world().gpu;
  GpuCommunicator& gpus = *c.gpus_here();
  RINGAR_RETURN_IF_ERROR(open_gpus(c, gpus, c.first_here(), request.spec));
  Hierarchy hierarchy(c, request);
  RINGAR_RETURN_IF_ERROR(hierarchy.prepare());
  std::unique_lock<std::mutex> locked;
  RINGAR_RETURN_IF_ERROR(gpus.lock(&locked));
  nccl::RedOp op = nccl::kSum;
  RINGAR_RETURN_IF_ERROR(gpus.communicator().acquire(request.spec.op, request.spec.dtype,
                                                     factor_of(request.spec), &op));
  Status status = gpu.begin(request.gpu->stream);
  if (status.ok()) status = hierarchy.run(op);
  gpus.communicator().release(op);
  RINGAR_RETURN_IF_ERROR(status);
  return gpu.end(request.gpu->stream, entry);
}

}  // namespace ringar
