#include "ranks.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <mutex>
#include <thread>

#include "check.h"
#include "shared_mapping.h"

namespace ringar::test {
namespace {

constexpr double kTimeout = 20;

// So that no start measures the network: what is not in it has the default.
constexpr int64_t kNoTable[] = {0};

// The host of each rank.
std::vector<int32_t> places(const Hosts& hosts) {
  std::vector<int32_t> of_rank;
  for (size_t h = 0; h < hosts.ranks.size(); ++h)
    of_rank.insert(of_rank.end(), static_cast<size_t>(hosts.ranks[h]), static_cast<int32_t>(h));
  if (!hosts.dealt) return of_rank;
  std::vector<int32_t> dealt;
  for (int turn = 0; dealt.size() < of_rank.size(); ++turn)
    for (size_t h = 0; h < hosts.ranks.size(); ++h)
      if (turn < hosts.ranks[h]) dealt.push_back(static_cast<int32_t>(h));
  return dealt;
}

// The shared segments and the notes of one job, for the time of a test.
class Job {
 public:
  explicit Job(const Hosts& hosts) : hosts_(places(hosts)) {
    for (size_t h = 0; h < hosts.ranks.size(); ++h) {
      fds_.push_back(memfd_create("ringar-test", 0));
      EXPECT(fds_.back() >= 0);
    }
    if (hosts.ranks.size() > 1) mesh_ = std::make_unique<TcpMesh>(size());
    void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    notes_ = static_cast<std::atomic<int>*>(memory);
  }
  ~Job() {
    munmap(notes_, kBytes);
    for (int fd : fds_) close(fd);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int size() const { return static_cast<int>(hosts_.size()); }

  Rank rank(int r) const {
    const int32_t host = hosts_[static_cast<size_t>(r)];
    const auto local_size = static_cast<int>(std::count(hosts_.begin(), hosts_.end(), host));
    const auto place = static_cast<int>(std::count(hosts_.begin(), hosts_.begin() + r, host));
    ringar_config config{};
    config.rank = r;
    config.size = size();
    config.local_rank = place;
    config.local_size = local_size;
    config.cross_rank = host;
    config.cross_size = static_cast<int>(fds_.size());
    config.segment_fd = fds_[static_cast<size_t>(host)];
    config.start_timeout = config.deadline = limit(kTimeout);
    config.stall_warning = limit(kTimeout) / 2;
    config.hosts = hosts_.data();
    config.recursive_doubling_bytes = kNoTable;
    config.recursive_doubling_count = 1;
    return {r, size(), config, notes_, mesh_.get()};
  }

 private:
  static constexpr size_t kBytes = Rank::kNotes * sizeof(std::atomic<int>);
  const std::vector<int32_t> hosts_;
  std::vector<int> fds_;
  std::unique_ptr<TcpMesh> mesh_;
  std::atomic<int>* notes_;
};

// Runs a rank; returns what went wrong, or "".
std::string run(const Body& body, Rank rank) {
  std::string failure = "rank " + std::to_string(rank.rank) + " | ";
  try {
    body(rank);
    return "";
  } catch (const Failure& caught) {
    failure += caught.text;
  } catch (const std::exception& error) {
    failure += error.what();
  }
  rank.notes[Rank::kFailed].store(1);
  return failure;
}

[[noreturn]] void be_a_rank(const Body& body, const Rank& rank) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string failure = run(body, rank);
  if (!failure.empty()) std::fprintf(stderr, "    %s\n", failure.c_str());
  // No destructors: they are the parent's.
  _exit(failure.empty() ? 0 : 1);
}

}  // namespace

std::unique_ptr<Engine> Rank::start() const {
  auto instance = engine();
  EXPECT_OK(instance->start());
  return instance;
}

void Rank::await(int place, int value) const {
  while (notes[place].load() < value) {
    if (notes[kFailed].load()) fail(__FILE__, __LINE__, "another rank has failed");
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void Rank::meet(int place) const {
  add(place);
  await(place, size);
}

void on_threads(int size, const Body& body) {
  on_threads(Hosts{{size}}, body);
}
void on_processes(int size, const Body& body) {
  on_processes(Hosts{{size}}, body);
}
std::vector<Ending> endings(int size, const Body& body) {
  return endings(Hosts{{size}}, body);
}

void on_threads(const Hosts& hosts, const Body& body) {
  const SharedMappings shared;
  const Job job(hosts);
  std::mutex mutex;
  std::string failures;
  std::vector<std::thread> threads;
  for (int r = 0; r < job.size(); ++r)
    threads.emplace_back([&, r] {
      const std::string failure = run(body, job.rank(r));
      const std::lock_guard<std::mutex> lock(mutex);
      failures += failure.empty() ? "" : "\n    " + failure;
    });
  for (std::thread& thread : threads) thread.join();
  if (!failures.empty()) fail(__FILE__, __LINE__, "ranks as threads:" + failures);
}

std::vector<Ending> endings(const Hosts& hosts, const Body& body) {
  const Job job(hosts);
  std::vector<pid_t> pids;
  for (int r = 0; r < job.size(); ++r) {
    const pid_t pid = fork();
    EXPECT(pid >= 0);
    if (pid == 0) be_a_rank(body, job.rank(r));
    pids.push_back(pid);
  }
  std::vector<Ending> all;
  for (pid_t pid : pids) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    all.push_back(
        {WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0});
  }
  return all;
}

void on_processes(const Hosts& hosts, const Body& body) {
  std::string failures;
  const std::vector<Ending> all = endings(hosts, body);
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r].code != 0)
      failures += " rank " + std::to_string(r) + " ended with code " + std::to_string(all[r].code) +
                  ", signal " + std::to_string(all[r].signal) + ";";
  if (!failures.empty()) fail(__FILE__, __LINE__, "ranks as processes:" + failures);
}

}  // namespace ringar::test
