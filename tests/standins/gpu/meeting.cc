#include "meeting.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "standin.h"

namespace standin {
namespace {

constexpr size_t kBoard = 4096, kChannel = 64 * 1024;
static_assert(sizeof(Meeting::Board) <= kBoard);

size_t bytes_of(int ranks) {
  return kBoard + static_cast<size_t>(ranks) * static_cast<size_t>(ranks) * kChannel;
}

// Closes a file, and lets go of its lock.
struct File {
  explicit File(const std::string& path) : number(open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    if (number >= 0) flock(number, LOCK_EX);
  }
  ~File() {
    if (number < 0) return;
    flock(number, LOCK_UN);  // a mapping would keep the lock beyond close()
    close(number);
  }
  File(const File&) = delete;
  void operator=(const File&) = delete;

  const int number;
};

void* map(const File& file, int ranks) {
  struct stat is;
  const size_t bytes = bytes_of(ranks);
  if (fstat(file.number, &is) != 0) return nullptr;
  if (static_cast<size_t>(is.st_size) < bytes && ftruncate(file.number, off_t(bytes)) != 0)
    return nullptr;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

bool invite(Invitation* invitation) {
  const int file = memfd_create("ringar-gpu-standin", MFD_CLOEXEC);
  struct stat is;
  if (file < 0 || fstat(file, &is) != 0) return false;
  *invitation = {getpid(), file, is.st_ino};
  return true;
}

void withdraw(const Invitation& invitation) {
  close(invitation.file);
}

std::shared_ptr<Meeting> Meeting::come(const Invitation& invitation, int ranks, int rank,
                                       int device, std::string* why) {
  const File file(text("/proc/%d/fd/%d", invitation.process, invitation.file));
  struct stat is;
  if (file.number < 0 || fstat(file.number, &is) != 0 || is.st_ino != invitation.inode)
    return nullptr;
  void* const memory = map(file, ranks);
  if (!memory) *why = "cannot map the memory of the ranks' meeting";
  if (!memory) return nullptr;
  std::shared_ptr<Meeting> meeting(new Meeting(invitation, ranks, memory));
  Board& board = meeting->board();
  auto& place = board.places[rank];
  if (board.ranks != 0 && board.ranks != ranks)
    *why = text("rank %d expects %d ranks, others expect %d", rank, ranks, board.ranks);
  else if (place.is_there)
    *why = text("there is a rank %d already", rank);
  if (!why->empty()) return nullptr;
  board.ranks = ranks;
  const Place where = place_of(device);
  const char* const shares = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  place = {true, where.is_known, shares && std::atoi(shares) != 0, where.host, where.gpu, getpid()};
  ++board.arrived;
  return meeting;
}

Meeting::~Meeting() {
  if (invitation_.process == getpid() && !board().is_withdrawn.exchange(true))
    withdraw(invitation_);
  munmap(memory_, bytes_of(ranks));
}

// As NCCL 2.27 and 2.31 have it, also for the parts of a GPU.
std::string Meeting::objection() const {
  const bool shares_gpus = nccl_version() >= 23000;
  for (int a = 0; a < ranks; ++a)
    for (int b = 0; b < a; ++b) {
      const auto &place = board().places[a], &other = board().places[b];
      if (!place.is_known || !other.is_known) continue;
      if (place.host != other.host || place.gpu != other.gpu) continue;
      if (!shares_gpus)
        return text("Duplicate GPU detected : rank %d and rank %d both on CUDA device %x", b, a,
                    static_cast<unsigned>(place.gpu));
      if (!place.shares || !other.shares)
        return "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 "
               "to enable this configuration.";
    }
  return "";
}

// A process that its parent has not waited for is a zombie.
bool has_ended(int process) {
  std::FILE* const file = std::fopen(text("/proc/%d/stat", process).c_str(), "r");
  if (!file) return true;
  char state = 0;
  const bool is_read = std::fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
  std::fclose(file);
  return is_read && (state == 'Z' || state == 'X');
}

int Meeting::dead_rank() const {
  for (int rank = 0; rank < ranks; ++rank)
    if (board().places[rank].is_there && has_ended(board().places[rank].process)) return rank;
  return -1;
}

Channel& Meeting::channel(int from, int to) const {
  const size_t index = static_cast<size_t>(from) * static_cast<size_t>(ranks) + size_t(to);
  return *reinterpret_cast<Channel*>(static_cast<char*>(memory_) + kBoard + index * kChannel);
}

void Meeting::fail(int code, const std::string& text) {
  int32_t none = 0;
  if (!board().error.compare_exchange_strong(none, -1)) return;
  std::snprintf(board().text, sizeof board().text, "%s", text.c_str());
  board().error = code;
}

}  // namespace standin
