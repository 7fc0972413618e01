// The link over MPI: point-to-point messages on a communicator of its own.
//
// Compiled twice, for the binary interfaces of Open MPI and of MPICH (mpi_abi.h). The MPI itself is
// the one that mpi4py has brought into the process; its functions are looked up there. User code
// may use MPI at the same time, if MPI was initialized with MPI_THREAD_MULTIPLE, as mpi4py does
// unless it is told otherwise.

#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "links/link.h"
#include "links/mpi_abi.h"

namespace ringar {
namespace {

// Functions of the MPI in this process.
struct Mpi {
  void* library = nullptr;
  std::string missing_symbol;

  template <typename Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    if (!function) missing_symbol = name;
  }

  int (*isend)(const void*, int, mpi::Datatype, int, int, mpi::Comm, mpi::Request*);
  int (*irecv)(void*, int, mpi::Datatype, int, int, mpi::Comm, mpi::Request*);
  int (*testsome)(int, mpi::Request*, int*, int*, mpi::Status*);
  int (*get_count)(const mpi::Status*, mpi::Datatype, int*);
  int (*cancel)(mpi::Request*);
  int (*request_free)(mpi::Request*);
  int (*comm_set_errhandler)(mpi::Comm, mpi::Errhandler);
  int (*error_string)(int, char*, int*);
  int (*finalized)(int*);
  mpi::Datatype byte;
  mpi::Errhandler errors_return;
  mpi::Request request_null;

  // What is wrong, or "".
  std::string open() {
    library = dlopen(mpi::kLibrary, RTLD_NOW | RTLD_NOLOAD);
    if (!library)
      return std::string("expected ") + mpi::kName + " (" + mpi::kLibrary +
             ") in this process, found none";
    find(isend, "MPI_Isend");
    find(irecv, "MPI_Irecv");
    find(testsome, "MPI_Testsome");
    find(get_count, "MPI_Get_count");
    find(cancel, "MPI_Cancel");
    find(request_free, "MPI_Request_free");
    find(comm_set_errhandler, "MPI_Comm_set_errhandler");
    find(error_string, "MPI_Error_string");
    find(finalized, "MPI_Finalized");
#if defined(RINGAR_MPI_OPENMPI)
    byte = static_cast<mpi::Datatype>(dlsym(library, mpi::kByte));
    errors_return = static_cast<mpi::Errhandler>(dlsym(library, mpi::kErrorsReturn));
    request_null = static_cast<mpi::Request>(dlsym(library, mpi::kRequestNull));
    if (!byte || !errors_return || !request_null) missing_symbol = mpi::kByte;
#else
    byte = mpi::kByte;
    errors_return = mpi::kErrorsReturn;
    request_null = mpi::kRequestNull;
#endif
    return missing_symbol.empty()
               ? ""
               : std::string(mpi::kName) + " of this process has no " + missing_symbol;
  }
};

class MpiLink : public Link {
  using Clock = std::chrono::steady_clock;

 public:
  MpiLink(const Mpi& mpi, mpi::Comm comm) : mpi_(mpi), comm_(comm) {
    mpi_.comm_set_errhandler(comm_, mpi_.errors_return);
  }

  // Receives that nobody waits for any longer; what is being sent ends by itself.
  ~MpiLink() override {
    int finalized = 0;
    mpi_.finalized(&finalized);
    if (finalized) return;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == mpi_.request_null) continue;
      // Where a rank was lost, a send to it is not done, and Open MPI ends the job when one fails
      // that was freed.
      if (transfers_[i].receives) give_up(&requests_[i]);
    }
  }

  Status send(int to, int tag, const std::byte* data, size_t bytes, int* handle) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int count = static_cast<int>(bytes);
    const size_t slot = begin({to, tag, false, bytes, 0}, handle);
    return outcome(mpi_.isend(data, count, mpi_.byte, to, tag, comm_, &requests_[slot]), slot);
  }

  Status receive(int from, int tag, std::byte* data, size_t bytes, Length length,
                 int* handle) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int count = static_cast<int>(bytes);
    const int expected = length == Length::kExact ? count : 0;
    const size_t slot = begin({from, tag, true, bytes, expected}, handle);
    const int source = from == kAnyone ? mpi::kAnySource : from;
    return outcome(mpi_.irecv(data, count, mpi_.byte, source, tag, comm_, &requests_[slot]), slot);
  }

  // One call for all: each makes MPI look at its sockets.
  Status progress() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    int count = 0;
    const int code = mpi_.testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                   finished_.data(), statuses_.data());
    bool is_told = code == mpi::kSuccess;  // by poll(), where one transfer has failed
    for (int i = 0; i < count && count != mpi::kUndefined; ++i) {
      const auto slot = static_cast<size_t>(finished_[static_cast<size_t>(i)]);
      const mpi::Status& status = statuses_[static_cast<size_t>(i)];
      Transfer& transfer = transfers_[slot];
      transfer.done = true;
      if (code != mpi::kSuccess) transfer.failure = status.MPI_ERROR;
      is_told |= transfer.failure != mpi::kSuccess;
      // A receive from anyone is told that a rank was lost, and goes on.
      if (transfer.failure != mpi::kSuccess && transfer.receives) give_up(&requests_[slot]);
      if (!transfer.receives || transfer.failure != mpi::kSuccess) continue;
      transfer.from = status.MPI_SOURCE;
      mpi_.get_count(&status, mpi_.byte, &transfer.received);
    }
    if (is_told) return {};
    return {RINGAR_PEER_LOST, "MPI could not look after its transfers: " + text(code)};
  }

  Status poll(int handle, bool* done, int* from) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Transfer& transfer = transfers_[static_cast<size_t>(handle)];
    *done = transfer.done;
    if (!transfer.done) return {};
    free_.push_back(handle);
    if (transfer.failure != mpi::kSuccess) return failure_of(transfer, text(transfer.failure));
    if (transfer.expected > 0 && transfer.received != transfer.expected)
      return failure_of(transfer, "expected a message of " + std::to_string(transfer.expected) +
                                      " bytes, received one of " +
                                      std::to_string(transfer.received));
    if (from) *from = transfer.from;
    return {};
  }

  // MPI does not tell how many bytes of a transfer have moved.
  std::vector<OpenTransfer> open_transfers() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<OpenTransfer> open;
    for (size_t i = 0; i < requests_.size(); ++i) {
      const Transfer& transfer = transfers_[i];
      if (requests_[i] == mpi_.request_null || transfer.done) continue;
      const std::chrono::duration<double> age = Clock::now() - transfer.since;
      open.push_back(
          {transfer.receives, transfer.peer, transfer.tag, transfer.bytes, -1, age.count()});
    }
    return open;
  }

 private:
  struct Transfer {
    int peer = 0, tag = 0;
    bool receives = false;
    size_t bytes = 0;
    int expected = 0;  // bytes; 0: as many as come
    Clock::time_point since = Clock::now();
    bool done = false;
    int failure = mpi::kSuccess;
    int from = 0, received = 0;
  };

  void give_up(mpi::Request* receive) const {
    if (*receive == mpi_.request_null) return;
    mpi_.cancel(receive);
    mpi_.request_free(receive);
  }

  size_t begin(const Transfer& transfer, int* handle) {
    if (free_.empty()) {
      free_.push_back(static_cast<int>(transfers_.size()));
      transfers_.emplace_back();
      requests_.push_back(mpi_.request_null);
      finished_.emplace_back();
      statuses_.emplace_back();
    }
    *handle = free_.back();
    free_.pop_back();
    const auto slot = static_cast<size_t>(*handle);
    transfers_[slot] = transfer;
    return slot;
  }

  Status outcome(int code, size_t slot) {
    if (code == mpi::kSuccess) return {};
    requests_[slot] = mpi_.request_null;
    transfers_[slot].done = true;
    transfers_[slot].failure = code;
    return {};
  }

  Status failure_of(const Transfer& transfer, const std::string& why) const {
    const std::string peer =
        transfer.peer == kAnyone ? "any rank" : "rank " + std::to_string(transfer.peer);
    return {RINGAR_PEER_LOST, std::string("MPI could not ") +
                                  (transfer.receives ? "receive from " : "send to ") + peer + ": " +
                                  why};
  }

  std::string text(int code) const {
    char text[mpi::kMaxErrorString] = "";
    int length = 0;
    mpi_.error_string(code, text, &length);
    return text;
  }

  std::mutex mutex_;
  const Mpi mpi_;
  const mpi::Comm comm_;
  // By handle; requests lie side by side, as MPI wants them.
  std::vector<Transfer> transfers_;
  std::vector<mpi::Request> requests_;
  std::vector<int> free_;
  std::vector<int> finished_;  // what progress() is told
  std::vector<mpi::Status> statuses_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) Link* ringar_open_link(void* communicator,
                                                                         char* why,
                                                                         size_t why_bytes) {
  Mpi mpi;
  const std::string problem = mpi.open();
  if (!problem.empty()) {
    std::snprintf(why, why_bytes, "%s", problem.c_str());
    return nullptr;
  }
  return new MpiLink(mpi, *static_cast<mpi::Comm*>(communicator));
}

}  // namespace ringar
