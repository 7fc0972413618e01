// ringar.h, and the engine of this process behind it.

#include <pthread.h>

#include <atomic>
#include <mutex>

#include "engine/cpu_level.h"
#include "engine/engine_instance.h"
#include "engine/limits.h"
#include "engine/reduce.h"
#include "engine/report.h"
#include "engine/traffic.h"
#include "include/ringar.h"
#include "links/open.h"

namespace ringar {
namespace {

std::shared_ptr<Engine> the_engine;
std::mutex the_engine_mutex;
thread_local std::string last_error;

// A forked child (of a data loader, say) has the engine's memory but not its thread, and is no
// rank: it must neither use the engine nor tell the others that this rank has left. Its copy of the
// engine is never destroyed.
void forget_engine_in_forked_children() {
  pthread_atfork([] { the_engine_mutex.lock(); }, [] { the_engine_mutex.unlock(); },
                 [] {
                   new std::shared_ptr<Engine>(std::move(the_engine));
                   the_engine_mutex.unlock();
                 });
}

Status not_initialized(const Request& request) {
  return {RINGAR_NOT_INITIALIZED, "ringar is not initialized: call ringar.init() before " +
                                      std::string(name_of(request.spec.collective))};
}

// The collective of a caller that waits: memory comes from a C function.
class CallerRequest : public Request {
 public:
  explicit CallerRequest(const Spec& spec) : Request(spec) {}

  void add(const ringar_array* arrays, int32_t count) {
    for (int32_t i = 0; i < count; ++i)
      tensors.push_back({static_cast<const std::byte*>(arrays[i].input),
                         static_cast<std::byte*>(arrays[i].output),
                         Shape(arrays[i].ndims, [&](int d) { return arrays[i].dims[d]; })});
  }
  std::byte* allocate(size_t index, int64_t rows) override {
    if (rows == expected_rows) return expected;
    if (!allocator) return nullptr;
    return static_cast<std::byte*>(allocator(context, static_cast<int32_t>(index), rows));
  }
  void complete(const Status&) override {}

  ringar_allocate allocator = nullptr;
  void* context = nullptr;
  std::byte* expected = nullptr;  // for an output with so many rows
  int64_t expected_rows = -1;
};

// A call that runs again and again, in one thread or in several at once.
class PreparedCall {
 public:
  PreparedCall(Spec spec, const ringar_array* arrays, int32_t count)
      : spec_(std::move(spec)), request_(spec_) {
    request_.add(arrays, count);
    tensors_ = request_.tensors;
  }

  // `prepare` fills in the arrays. A thread that finds the request in use makes another.
  template <typename Prepare>
  int run(Prepare prepare) {
    if (in_use_.exchange(true)) {
      CallerRequest other(spec_);
      return run(other, prepare);
    }
    const int code = run(request_, prepare);
    in_use_.store(false);
    return code;
  }

 private:
  template <typename Prepare>
  int run(CallerRequest& request, Prepare prepare) const {
    request.tensors = tensors_;  // those of the run before may be gone
    prepare(request);
    const Status status = ringar::run(request);
    return status.ok() ? RINGAR_OK : report(status);
  }

  const Spec spec_;
  CallerRequest request_;
  std::vector<Tensor> tensors_;
  std::atomic<bool> in_use_{false};
};

int run_call(const char* spec_text, const ringar_array* arrays, int32_t count,
             const int64_t* splits, int32_t split_count, int64_t* received,
             ringar_allocate allocate, void* context, std::optional<OnGpu> gpu) {
  Spec spec;
  const Status parsed = Spec::parse(spec_text, &spec);
  if (!parsed.ok()) return report(parsed);
  CallerRequest request(spec);
  request.allocator = allocate;
  request.context = context;
  request.gpu = std::move(gpu);
  request.add(arrays, count);
  if (splits) request.splits.assign(splits, splits + split_count);
  const Status status = run(request);
  if (status.ok() && received)
    std::copy(request.received.begin(), request.received.end(), received);
  return report(status);
}

}  // namespace

int report(const Status& status) {
  last_error = status.message();
  return status.code();
}

std::shared_ptr<Engine> engine() {
  const std::lock_guard<std::mutex> lock(the_engine_mutex);
  return the_engine;
}

void submit(Request* request) {
  const auto target = engine();
  if (target)
    target->submit(request);
  else
    request->complete(not_initialized(*request));
}

Status run(Request& request) {
  const auto target = engine();
  return target ? target->run(request) : not_initialized(request);
}

}  // namespace ringar

using namespace ringar;

extern "C" {

const char* ringar_version(void) {
  return RINGAR_VERSION;
}
const char* ringar_cpu_level(void) {
  return cpu_level_name();
}
const char* ringar_last_error(void) {
  return last_error.c_str();
}

void ringar_forget(int32_t rank, int32_t tag) {
  if (const auto target = engine()) target->forget(rank, tag);
}

int ringar_init(const ringar_config* config) {
  if (engine()) return RINGAR_OK;
  static std::once_flag once;
  std::call_once(once, forget_engine_in_forked_children);
  std::unique_ptr<Link> link;
  const Status opened = open_link(*config, &link);
  if (!opened.ok()) return report(opened);
  auto fresh = std::make_shared<Engine>(*config, std::move(link));
  const Status started = fresh->start();
  if (!started.ok()) return report(started);
  const std::lock_guard<std::mutex> lock(the_engine_mutex);
  the_engine = std::move(fresh);
  return RINGAR_OK;
}

void ringar_shutdown(void) {
  std::shared_ptr<Engine> last;
  {
    const std::lock_guard<std::mutex> lock(the_engine_mutex);
    last.swap(the_engine);
  }
  // Not left to the destructor: a thread that waits in a collective holds the engine, too.
  if (last) last->stop();
}

int ringar_is_initialized(void) {
  return engine() != nullptr;
}

int ringar_has_failed(void) {
  const auto running = engine();
  return running && running->has_failed();
}

const char* ringar_stats(int64_t* size) {
  static thread_local std::string text;
  text = Traffic::instance().text();
  *size = static_cast<int64_t>(text.size());
  return text.data();
}

void ringar_reset_stats(void) {
  Traffic::instance().reset();
}

double ringar_processor_quota(void) {
  return processor_quota();
}

int64_t ringar_inline_bytes(void) {
  const auto running = engine();
  return running ? static_cast<int64_t>(running->inline_bytes()) : 0;
}

int64_t ringar_past_caches_bytes(void) {
  const auto running = engine();
  const size_t bytes = running ? running->past_caches_bytes() : kNever;
  return bytes == kNever ? 0 : static_cast<int64_t>(bytes);
}

int64_t ringar_bucket_bytes(void) {
  const auto running = engine();
  return running ? static_cast<int64_t>(running->bucket_bytes()) : 0;
}

int ringar_has_calibrated(void) {
  const auto running = engine();
  return running && running->has_calibrated();
}

int ringar_start_timeline(const char* path, int32_t rank) {
  return report(Timeline::instance().start(path, rank));
}
void ringar_stop_timeline(void) {
  Timeline::instance().stop();
}

int ringar_add_process_set(const int32_t* ranks, int32_t count, int32_t* id) {
  const auto target = engine();
  if (!target) return report({RINGAR_NOT_INITIALIZED, "call ringar.init() before add_process_set"});
  return report(target->add_process_set(std::vector<int>(ranks, ranks + count), id));
}

int ringar_remove_process_set(int32_t id) {
  const auto target = engine();
  if (!target)
    return report({RINGAR_NOT_INITIALIZED, "call ringar.init() before remove_process_set"});
  return report(target->remove_process_set(id));
}

int ringar_run(const char* spec_text, const ringar_array* arrays, int32_t count,
               const int64_t* splits, int32_t split_count, int64_t* received,
               ringar_allocate allocate, void* context) {
  return run_call(spec_text, arrays, count, splits, split_count, received, allocate, context, {});
}

int ringar_run_on_gpu(const char* spec_text, const ringar_array* arrays, int32_t count,
                      const int64_t* splits, int32_t split_count, int64_t* received,
                      ringar_allocate allocate, void* context, int32_t device, void* stream) {
  return run_call(spec_text, arrays, count, splits, split_count, received, allocate, context,
                  OnGpu{device, stream});
}

int ringar_synchronize_gpu(void) {
  const auto running = engine();
  if (!running)
    return report({RINGAR_NOT_INITIALIZED,
                   "ringar is not initialized: call ringar.init() before synchronize"});
  return report(running->synchronize_gpu());
}

ringar_call* ringar_prepare(const char* spec_text, const ringar_array* arrays, int32_t count) {
  Spec spec;
  const Status parsed = Spec::parse(spec_text, &spec);
  report(parsed);
  if (!parsed.ok()) return nullptr;
  return reinterpret_cast<ringar_call*>(new PreparedCall(std::move(spec), arrays, count));
}

int ringar_run_prepared(ringar_call* call) {
  return reinterpret_cast<PreparedCall*>(call)->run([](CallerRequest&) {});
}

int ringar_run_again(ringar_call* call, int64_t rows, ringar_allocate allocate,
                     const void* const* input, void* const* output, void* context) {
  return reinterpret_cast<PreparedCall*>(call)->run([&](CallerRequest& request) {
    Tensor& tensor = request.tensors.front();
    auto* const memory = static_cast<std::byte*>(*output);
    tensor.input = static_cast<const std::byte*>(*input);
    tensor.output = rows < 0 ? memory : nullptr;
    request.expected = memory;
    request.expected_rows = rows;
    request.allocator = allocate;
    request.context = context;
  });
}

void ringar_release(ringar_call* call) {
  delete reinterpret_cast<PreparedCall*>(call);
}

ringar_memory* ringar_take_memory(int64_t bytes, void** address) {
  const auto running = engine();
  const auto pool = running ? running->outputs() : nullptr;
  auto memory = pool ? pool->take(static_cast<size_t>(bytes)) : nullptr;
  if (memory) *address = memory->data();
  return reinterpret_cast<ringar_memory*>(memory.release());
}

void ringar_free_memory(ringar_memory* memory) {
  delete reinterpret_cast<OutputPool::Memory*>(memory);
}

void ringar_ask_to_stop(int asks) {
  if (const auto running = engine()) running->shares().asks_to_stop.store(asks != 0);
}

int ringar_stop_was_seen(void) {
  const auto running = engine();
  return running && running->shares().stop_was_seen.load();
}

int64_t ringar_steps(void) {
  const auto running = engine();
  return running ? running->shares().steps.load() : 0;
}

void ringar_begin_training(void) {
  if (const auto running = engine()) running->shares().begin_training();
}

}  // extern "C"
