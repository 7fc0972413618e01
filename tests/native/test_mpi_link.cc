// The MPI link with an MPI of our own, whose calls end as a test wants.

#define RINGAR_MPI_MPICH

#include <cstring>
#include <vector>

#include "check.h"
#include "links/mpi.cc"

namespace ringar::test {
namespace {

constexpr int kBad = 17;

// What MPI_Testsome says next.
struct Answer {
  int code = mpi::kSuccess;
  std::vector<int> finished;  // requests, from 0 in the order in which they were made
  mpi::Status status{};       // of each
  int bytes = 0;              // of each message
  bool goes_on = false;       // a receive from anyone, when a rank is lost
};
Answer answer;
int requests_made, requests_cancelled;
int end_of_isend;

Mpi mpi_of_the_test() {
  requests_made = requests_cancelled = 0;
  end_of_isend = mpi::kSuccess;
  Mpi mpi{};
  mpi.isend = [](const void*, int, mpi::Datatype, int, int, mpi::Comm, mpi::Request* request) {
    *request = 100 + requests_made++;
    return end_of_isend;
  };
  mpi.irecv = [](void*, int, mpi::Datatype, int, int, mpi::Comm, mpi::Request* request) {
    *request = 100 + requests_made++;
    return mpi::kSuccess;
  };
  mpi.testsome = [](int, mpi::Request* requests, int* count, int* indices, mpi::Status* statuses) {
    for (int request : answer.finished) {
      if (!answer.goes_on) requests[request] = mpi::kRequestNull;
      indices[*count] = request;
      statuses[(*count)++] = answer.status;
    }
    return answer.code;
  };
  mpi.get_count = [](const mpi::Status*, mpi::Datatype, int* bytes) {
    *bytes = answer.bytes;
    return mpi::kSuccess;
  };
  mpi.cancel = [](mpi::Request*) {
    ++requests_cancelled;
    return mpi::kSuccess;
  };
  mpi.request_free = [](mpi::Request* request) {
    *request = mpi::kRequestNull;
    return mpi::kSuccess;
  };
  mpi.comm_set_errhandler = [](mpi::Comm, mpi::Errhandler) { return mpi::kSuccess; };
  mpi.error_string = [](int code, char* text, int* length) {
    *length = std::snprintf(text, mpi::kMaxErrorString, "error %d", code);
    return mpi::kSuccess;
  };
  mpi.finalized = [](int* flag) { return *flag = 0; };
  mpi.request_null = mpi::kRequestNull;
  return mpi;
}

// A link that receives 8 bytes from rank 3, and more if it is told to.
struct Receiving {
  MpiLink mpi_link{mpi_of_the_test(), 0};
  Link& link = mpi_link;
  std::byte memory[8];
  int handle = -1;
  bool done = false;

  explicit Receiving(Link::Length length = Link::Length::kExact) {
    EXPECT_OK(link.receive(3, 5, memory, sizeof memory, length, &handle));
  }
};

TEST(mpi_link_tells_when_mpi_cannot_look) {
  Receiving receiving;
  answer = {kBad, {}, {}, 0};
  const Status status = receiving.link.progress();
  EXPECT_EQ(status.code(), RINGAR_PEER_LOST);
  EXPECT_CONTAINS(status.message(), "MPI could not look after its transfers: error 17");
}

TEST(mpi_link_tells_which_transfer_has_failed) {
  Receiving receiving;
  answer = {kBad, {0}, {}, 0};
  answer.status.MPI_ERROR = 33;
  EXPECT_OK(receiving.link.progress());
  const Status status = receiving.link.poll(receiving.handle, &receiving.done);
  EXPECT_EQ(status.code(), RINGAR_PEER_LOST);
  EXPECT_CONTAINS(status.message(), "MPI could not receive from rank 3: error 33");
  // Its slot is free, once.
  int second = -1, third = -1;
  EXPECT_OK(receiving.link.send(1, 5, receiving.memory, 8, &second));
  EXPECT_OK(receiving.link.send(1, 5, receiving.memory, 8, &third));
  EXPECT_EQ(second, receiving.handle);
  EXPECT(third != second);
}

TEST(mpi_link_tells_what_is_open) {
  Receiving receiving;
  int handle = -1;
  EXPECT_OK(receiving.link.send(2, 6, receiving.memory, 4, &handle));
  std::vector<OpenTransfer> open = receiving.link.open_transfers();
  EXPECT_EQ(open.size(), size_t{2});
  EXPECT(open[0].receives && open[0].peer == 3 && open[0].tag == 5 && open[0].bytes == 8);
  EXPECT(!open[1].receives && open[1].peer == 2 && open[1].tag == 6 && open[1].bytes == 4);
  EXPECT_EQ(open[1].moved, -1);
  answer = {mpi::kSuccess, {0}, {}, 8};
  EXPECT_OK(receiving.link.progress());
  open = receiving.link.open_transfers();
  EXPECT(open.size() == 1 && !open[0].receives);
}

TEST(mpi_link_tells_by_poll_what_could_not_begin) {
  Receiving receiving;
  end_of_isend = 33;
  int handle = -1, next = -1;
  bool done = false;
  EXPECT_OK(receiving.link.send(1, 5, receiving.memory, 8, &handle));
  end_of_isend = mpi::kSuccess;
  EXPECT_OK(receiving.link.send(2, 5, receiving.memory, 8, &next));
  EXPECT(next != handle);
  const Status status = receiving.link.poll(handle, &done);
  EXPECT_EQ(status.code(), RINGAR_PEER_LOST);
  EXPECT_CONTAINS(status.message(), "MPI could not send to rank 1: error 33");
}

TEST(mpi_link_ends_a_receive_that_goes_on_after_an_error) {
  Receiving receiving;
  answer = {kBad, {0}, {}, 0, true};
  answer.status.MPI_ERROR = 33;
  EXPECT_OK(receiving.link.progress());
  EXPECT_EQ(requests_cancelled, 1);
  EXPECT_EQ(receiving.link.poll(receiving.handle, &receiving.done).code(), RINGAR_PEER_LOST);
}

TEST(mpi_link_expects_messages_of_the_right_length) {
  for (int bytes : {8, 4, 0})
    for (Link::Length length : {Link::Length::kExact, Link::Length::kAtMost}) {
      Receiving receiving(length);
      answer = {mpi::kSuccess, {0}, {}, bytes};
      answer.status.MPI_SOURCE = 3;
      EXPECT_OK(receiving.link.progress());
      int from = -1;
      const Status status = receiving.link.poll(receiving.handle, &receiving.done, &from);
      EXPECT(receiving.done);
      if (bytes == 8 || length == Link::Length::kAtMost) {
        EXPECT_OK(status);
        EXPECT_EQ(from, 3);
        continue;
      }
      EXPECT_EQ(status.code(), RINGAR_PEER_LOST);
      EXPECT_CONTAINS(status.message(),
                      "expected a message of 8 bytes, received one of " + std::to_string(bytes));
    }
}

}  // namespace
}  // namespace ringar::test
