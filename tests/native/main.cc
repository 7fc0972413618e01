// Runs the tests whose names contain one of the arguments, or all; without those whose names
// contain an argument behind a "-". RINGAR_TEST_JOBS=4 runs four at a time, for much of the time
// ranks only wait. Each test has a deadline: one that hangs, or ends its process, is a failure, and
// the others go on in a new process.

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>

#include "check.h"

namespace ringar::test {

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

bool emulated() {
  const char* value = std::getenv("RINGAR_TEST_EMULATED");
  return value && std::strcmp(value, "1") == 0;
}

void fail(const char* file, int line, const std::string& message) {
  const char* slash = std::strrchr(file, '/');
  throw Failure{std::string(slash ? slash + 1 : file) + ":" + std::to_string(line) + ": " +
                message};
}

}  // namespace ringar::test

namespace {

using ringar::test::Failure;
using ringar::test::limit;
using ringar::test::Skipped;
using ringar::test::Test;

constexpr double kDeadlineSeconds = 120;
const char* running = "";

void on_deadline(int) {
  const char text[] = " did not end before its deadline\n";
  (void)!write(STDERR_FILENO, running, std::strlen(running));
  (void)!write(STDERR_FILENO, text, sizeof text - 1);
  _exit(124);
}

bool is_selected(const char* name, int argc, char** argv) {
  bool has_names = false, is_named = false;
  for (int i = 1; i < argc; ++i) {
    const bool without = argv[i][0] == '-';
    const bool matches = std::strstr(name, argv[i] + without);
    if (without && matches) return false;
    has_names = has_names || !without;
    is_named = is_named || (!without && matches);
  }
  return is_named || !has_names;
}

// Processor time of this process and of the ranks that have ended.
double processor_seconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage;
    getrusage(who, &usage);
    for (const timeval& time : {usage.ru_utime, usage.ru_stime})
      seconds += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  }
  return seconds;
}

bool passes(const Test& test) {
  running = test.name;
  alarm(static_cast<unsigned>(limit(kDeadlineSeconds)));
  const auto start = std::chrono::steady_clock::now();
  const double processor_start = processor_seconds();
  std::string failure;
  try {
    test.body();
  } catch (const Failure& caught) {
    failure = "    " + caught.text + "\n";
  } catch (const Skipped& caught) {
    alarm(0);
    std::printf("skipped %s: %s\n", test.name, caught.why.c_str());
    return true;
  }
  alarm(0);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%s %s (%.2f s, %.2f s of a processor)\n%s", failure.empty() ? "ok    " : "FAILED",
              test.name, took.count(), processor_seconds() - processor_start, failure.c_str());
  std::fflush(stdout);  // or a forked rank would print it again
  return failure.empty();
}

// What the processes that run tests have in common.
struct Progress {
  std::atomic<size_t> next;
  std::atomic<int> run, failed;
  // The test that each process runs; none: kNone.
  static constexpr int kMostJobs = 64;
  static constexpr size_t kNone = ~size_t{0};
  std::atomic<size_t> current[kMostJobs];
};

void run_tests(Progress& progress, int job, int argc, char** argv) {
  for (size_t i; (i = progress.next.fetch_add(1)) < ringar::test::tests().size();) {
    const Test& test = ringar::test::tests()[i];
    if (!is_selected(test.name, argc, argv)) continue;
    progress.current[job].store(i);
    ++progress.run;
    if (!passes(test)) ++progress.failed;
    progress.current[job].store(Progress::kNone);
  }
}

// Forked from a process without threads, as the ranks of a job that runs all tests itself.
pid_t start_job(Progress& progress, int job, int argc, char** argv) {
  progress.current[job].store(Progress::kNone);
  const pid_t pid = fork();
  if (pid < 0) std::abort();
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  run_tests(progress, job, argc, argv);
  std::exit(0);
}

void run_jobs(Progress& progress, int jobs, int argc, char** argv) {
  std::map<pid_t, int> running_jobs;
  for (int job = 0; job < jobs; ++job) running_jobs[start_job(progress, job, argc, argv)] = job;
  while (!running_jobs.empty()) {
    int status = 0;
    const auto worker = running_jobs.find(waitpid(-1, &status, 0));
    if (worker == running_jobs.end()) std::abort();
    const int job = worker->second;
    running_jobs.erase(worker);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    ++progress.failed;
    const size_t test = progress.current[job].load();
    std::printf("FAILED %s\n    ended its process with %s %d\n",
                test == Progress::kNone ? "after the last test" : ringar::test::tests()[test].name,
                WIFEXITED(status) ? "code" : "signal",
                WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    std::fflush(stdout);
    running_jobs[start_job(progress, job, argc, argv)] = job;
  }
}

}  // namespace

int main(int argc, char** argv) {
  signal(SIGALRM, on_deadline);
  const char* text = std::getenv("RINGAR_TEST_JOBS");
  const int jobs = std::clamp(text ? std::atoi(text) : 1, 1, Progress::kMostJobs);
  void* const shared =
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) std::abort();
  Progress& progress = *new (shared) Progress{};
  if (jobs == 1)
    run_tests(progress, 0, argc, argv);
  else
    run_jobs(progress, jobs, argc, argv);
  const int run = progress.run.load(), failed = progress.failed.load();
  std::printf("%d tests, %d failed\n", run, failed);
  return failed || run == 0 ? 1 : 0;
}
