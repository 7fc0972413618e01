#include "meeting.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
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
  explicit File(const std::string& name)
      : number(shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
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
  if (file.number < 0 || fstat(file.number, &is) != 0) return nullptr;
  if (static_cast<size_t>(is.st_size) < bytes && ftruncate(file.number, off_t(bytes)) != 0)
    return nullptr;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

std::shared_ptr<Meeting> Meeting::come(const std::string& name, int ranks, int rank, int device,
                                       std::string* why) {
  const File file(name);
  void* const memory = map(file, ranks);
  if (!memory) *why = "cannot map /dev/shm" + name;
  if (!memory) return nullptr;
  std::shared_ptr<Meeting> meeting(new Meeting(name, ranks, memory));
  Board& board = meeting->board();
  auto& place = board.places[rank];
  if (board.ranks != 0 && board.ranks != ranks)
    *why = text("rank %d expects %d ranks, others expect %d", rank, ranks, board.ranks);
  else if (place.is_there)
    *why = text("there is a rank %d already", rank);
  if (!why->empty()) return nullptr;
  board.ranks = ranks;
  place = {true, device, devices()};
  if (++board.arrived == ranks) shm_unlink(name.c_str());
  return meeting;
}

// Ranks that gave up before all had come leave no file behind.
Meeting::~Meeting() {
  if (!is_complete()) shm_unlink(name.c_str());
  munmap(memory_, bytes_of(ranks));
}

std::string Meeting::objection() const {
  for (int a = 0; a < ranks; ++a)
    for (int b = 0; b < a; ++b) {
      const auto &place = board().places[a], &other = board().places[b];
      if (place.device == other.device && place.devices > 1 && other.devices > 1)
        return text("ranks %d and %d both use device %d, of %d", b, a, place.device, place.devices);
    }
  return "";
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
