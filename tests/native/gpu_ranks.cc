#include "gpu_ranks.h"

#include <dlfcn.h>

#include "check.h"
#include "plans.h"

namespace ringar::test {
namespace {

template <typename Function>
void find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (!*function) fail(__FILE__, __LINE__, std::string("the stand-in lacks ") + name);
}

GpuStandin open_standin() {
  void* const library = dlopen(RINGAR_GPU_STANDIN, RTLD_NOW | RTLD_LOCAL);
  if (!library) fail(__FILE__, __LINE__, dlerror());
  GpuStandin standin{};
  find(library, "standin_fail", &standin.fail);
  find(library, "standin_fail_with", &standin.fail_with);
  find(library, "standin_hang", &standin.hang);
  find(library, "standin_release", &standin.release);
  find(library, "standin_fail_later", &standin.fail_later);
  find(library, "standin_lateness", &standin.lateness);
  find(library, "standin_calls", &standin.calls);
  find(library, "standin_open", &standin.open);
  find(library, "standin_misuse", &standin.misuse);
  find(library, "standin_forget", &standin.forget);
  find(library, "standin_devices", &standin.devices);
  find(library, "standin_place", &standin.place);
  find(library, "standin_pretend_version", &standin.pretend_version);
  find(library, "standin_enqueue", &standin.enqueue);
  return standin;
}

}  // namespace

const GpuStandin& gpu_standin() {
  static const GpuStandin standin = open_standin();
  return standin;
}

std::unique_ptr<Engine> start_with_gpu(const Rank& rank) {
  Rank with_gpu = rank;
  with_gpu.config.cuda_library = with_gpu.config.nccl_library = RINGAR_GPU_STANDIN;
  return with_gpu.start();
}

TestRequest& request_for(const std::string& spec) {
  static auto& all = *new std::vector<std::unique_ptr<TestRequest>>;
  all.push_back(std::make_unique<TestRequest>(spec));
  return *all.back();
}

Status allreduce_on_gpu(Engine& engine, const Rank& me, const std::string& name,
                        const std::string& options) {
  TestRequest& request =
      request_for("allreduce dtype=float32 op=sum postscale=0.5 " + options + "name=" + name);
  add_ones(request, me.rank, 1000);
  request.gpu.emplace();
  RINGAR_RETURN_IF_ERROR(engine.run(request));
  RINGAR_RETURN_IF_ERROR(engine.synchronize_gpu());
  EXPECT_EQ(reinterpret_cast<const float*>(request.output(0).data())[7],
            static_cast<float>(me.size * (me.size + 1)) / 4);
  return {};
}

void expect_clean_gpu() {
  EXPECT_EQ(std::string(gpu_standin().misuse()), "");
  EXPECT_EQ(std::string(gpu_standin().open()), "");
}

}  // namespace ringar::test
