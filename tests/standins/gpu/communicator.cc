#include "communicator.h"

#include <thread>
#include <utility>

#include "standin.h"

namespace standin {

namespace nccl = ringar::nccl;

namespace {

struct LastError {
  std::mutex mutex;
  std::string text;
};

LastError& latest() {
  static auto& instance = *new LastError;
  return instance;
}

}  // namespace

void note_error(const std::string& text) {
  const std::lock_guard<std::mutex> lock(latest().mutex);
  latest().text = text;
}

std::string last_error() {
  const std::lock_guard<std::mutex> lock(latest().mutex);
  return latest().text;
}

Handles<Communicator, nccl::Comm>& communicators() {
  static auto& all = *new Handles<Communicator, nccl::Comm>("communicator", 3);
  return all;
}

void Communicator::start(std::function<void()> job) {
  ++in_progress;
  stay();
  std::thread([self = shared_from_this(), job = std::move(job)] {
    job();
    --self->in_progress;
  }).detach();
}

nccl::Result Communicator::state() const {
  if (const nccl::Result error = error_) return error;
  return in_progress > 0 ? nccl::kInProgress : nccl::kSuccess;
}

bool Communicator::meet(const Invitation& invitation) {
  std::string why;
  meeting = Meeting::come(invitation, ranks, rank, device, &why);
  if (!meeting && why.empty()) fail(nccl::kRemoteError, "Connection refused by remote peer");
  if (!why.empty()) misuse("communicator", why);
  if (!why.empty()) fail(nccl::kInvalidUsage, why);
  if (!meeting) return false;
  const double begin = now();
  while (!meeting->is_complete()) {
    if (is_stopped()) return false;
    if (now() - begin > timeout()) {
      fail(nccl::kRemoteError, text("rank %d has waited too long for %d ranks", rank,
                                    ranks - meeting->board().arrived));
      return false;
    }
    pause();
  }
  const std::string objection = meeting->objection();
  if (!objection.empty()) misuse("communicator", objection);
  if (!objection.empty()) fail(nccl::kInvalidUsage, objection);
  return objection.empty();
}

void Communicator::finalize() {
  double begin = now();
  while (pending > 0 && !is_stopped()) {
    if (now() - begin > timeout()) return fail(nccl::kRemoteError, "operations do not end");
    pause();
  }
  if (is_stopped()) return;
  ++meeting->board().finalized;
  begin = now();
  while (meeting->board().finalized < ranks && !is_stopped() && now() - begin < 2) pause();
}

void Communicator::abort() {
  is_aborted = true;
  while (in_progress > 0 || running > 0) pause();
}

void Communicator::fail(nccl::Result code, const std::string& text) {
  nccl::Result none = nccl::kSuccess;
  if (error_.compare_exchange_strong(none, code)) note_error(text);
}

void Communicator::fail_late(const std::string& text) {
  const double begin = now();
  while (!is_aborted && now() - begin < lateness()) pause();
  fail(nccl::kRemoteError, text);
}

void Communicator::fail_all(nccl::Result code, const std::string& text) {
  meeting->fail(code, text);
  is_stopped();
}

bool Communicator::is_stopped() {
  if (is_aborted || error_ != nccl::kSuccess) return true;
  const double moment = now();
  if (meeting && moment > look_at_) {
    look_at_ = moment + 0.02;
    if (meeting->dead_rank() >= 0) fail(nccl::kRemoteError, "Connection closed by remote peer");
    if (error_ != nccl::kSuccess) return true;
  }
  const nccl::Result shared = meeting ? meeting->board().error.load() : nccl::kSuccess;
  if (shared <= 0) return false;
  misuse(text("communicator, rank %d of %d", rank, ranks), meeting->board().text);
  fail(shared, meeting->board().text);
  return true;
}

void Communicator::wait_for_abort() const {
  while (!is_aborted) pause();
}

bool Communicator::begin(uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_running_ || number != completions_) return false;
  is_running_ = true;
  return true;
}

void Communicator::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_running_ = false;
  ++completions_;
}

}  // namespace standin
