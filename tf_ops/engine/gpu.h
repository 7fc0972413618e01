// The GPU of this rank: what the engine has there, and how a collective gets into its streams.
//
//     caller's stream   kernels … | ready                      wait(done) | kernels …
//     ringar's stream               wait(ready) | NCCL | moved | fence | done
//
// Nothing waits for the device. There is one stream for all process sets, so that the GPU runs
// their collectives in the order in which the engine does, on every rank alike; communicators with
// streams of their own could wait for each other. gpu_watch.h tells what the fence is for.

#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/gpu_monitor.h"
#include "engine/gpu_watch.h"
#include "engine/status.h"
#include "links/cuda.h"
#include "links/nccl.h"

namespace ringar {

// What tells a rank's GPU from those of others.
struct Card {
  char bus[16];  // its place on the host; the parts of a GPU (MIG) have that of the GPU
  int nccl_version;
  bool shares;  // the process has asked NCCL to let ranks share a GPU
};

class Gpu {
 public:
  // Files to open when they are needed, or empty: those of the system. `hangs` is told of a call
  // that has not returned by the deadline.
  Gpu(std::string cuda_library, std::string nccl_library, double deadline,
      GpuMonitor::Report hangs);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  // Opens the libraries and the device, if that was not done before. A rank has one device.
  Status use(int device);
  bool is_open();
  // Held from a collective's exchange between the hosts until it is in the stream, which all
  // process sets share: ranks whose sets took each other's places there would wait for each other.
  std::mutex& order() { return order_; }
  // The device of a stream, which is not null.
  Status device_of(void* stream, int* device);

  // These, after use() has succeeded, with the context current -----------------------------------

  const Cuda& driver() const { return *driver_; }
  const Nccl& nccl() const { return *nccl_; }
  cuda::Context context() const { return context_; }
  cuda::Stream stream() const { return stream_; }
  GpuWatch& watch() { return *watch_; }
  const Card& card() const { return card_; }

  Status refuse_stream(void* stream) const;
  // Has ringar's stream wait for what is in the caller's.
  Status begin(void* caller);
  // Closes what was enqueued since, and has the caller's stream wait for it.
  Status end(void* caller, std::shared_ptr<Enqueued> entry);

  // Memory that collectives use one after the other, in the order of ringar's stream: on the
  // device, and as much on the host.
  struct Staging {
    std::byte* device = nullptr;
    std::byte* host = nullptr;
    size_t bytes = 0;
    cuda::Event arrived = nullptr;
  };
  // Number 0 or 1, of at least `bytes`. It grows only while nothing is under way.
  Status staging(size_t number, size_t bytes, Staging** staging);

  // Nothing is left on the device afterwards. Communicators are closed before.
  void close();
  // The process sets end: there is nobody left to tell of a call that hangs.
  void forget_sets();

 private:
  Status open(int device);
  Status identify();
  void free(Staging& staging);

  const std::string cuda_library_, nccl_library_;
  const double deadline_;
  const GpuMonitor::Report hangs_;
  std::mutex opening_, order_;
  const Cuda* driver_ = nullptr;
  const Nccl* nccl_ = nullptr;
  int device_ = -1;
  cuda::Device handle_ = 0;
  Card card_{};
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;
  cuda::Event ready_ = nullptr;
  std::unique_ptr<GpuWatch> watch_;
  Staging staging_[2];
  std::optional<GpuMonitor> monitor_;  // ends last: what ends before may hang
};

}  // namespace ringar
