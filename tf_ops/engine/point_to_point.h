// Messages of this rank: from one rank to another, both of which name the other one.
//
// Between two ranks there is a stream in each direction for each tag: the n-th message that rank a
// sends to rank b with a tag goes to the n-th receive on b from a with it, whatever their process
// sets. A stream has two buffers. A send is done when its message is in one of them, and waits
// while none is free; so a rank computes while the message before is on its way or not yet taken.
//
//     rank 0   compute 0 | send 0 | compute 1   | send 1 | compute 2   | send 2 (waits?) ...
//     rank 1                      | recv 0 | compute 0   | recv 1 | compute 1 ...
//
// Each message says what it is (message.h), as a collective does by its signature. If the receiver
// has been asked for something else, it drops the message and tells the sender, which finds out at
// a later send to the same rank; that one is not sent. Both go on in step.
//
// Messages are no collectives. They leave the engine's queue as soon as they are posted here, in
// the order of the program; requests that wait here delay neither collectives nor other streams. A
// caller that waits drives its stream itself; a thread, started when it is first needed, drives all
// others. Both sleep on the doorbell of this rank (host_channel.h).
//
// A peer that dies, leaves or gives up, and a deadline, break the stream for good. What the peer
// has sent before can still be received. A message that fails in a step of TensorFlow takes the
// rest of the step with it, which other ranks count on: then this rank gives up all its messages.

#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/host_channel.h"
#include "engine/link_channel.h"
#include "engine/message_stream.h"

namespace ringar {

class PointToPoint {
 public:
  // Tells of the end of a request that was posted.
  using Finish = std::function<void(Request*, const Status&)>;

  PointToPoint(const World& world, int generation, Finish finish);
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  // Takes a request over until finish() is called. `peer`: the other rank of the job; none if
  // `refusal` tells why there is none.
  void post(Request* request, int peer, const Status& refusal);
  // Posts a request and waits for its end.
  Status run(Request& request, int peer);

  // Whether requests that were announced in a step wait here.
  bool has(int64_t step);
  // Messages with this tag from a rank will not be received: their memory is given back.
  void forget(int peer, int tag);
  // Ends all that waits and all that comes with an error, and tells the other ranks.
  void give_up(const Status& status);
  // Ends what waits with an error, when timeouts.stop is set, and stays a moment for what is on its
  // way to other hosts. Returns when no thread is at work here any longer.
  void stop();

  bool is_broken() const { return is_broken_.load(); }

 private:
  MessageStream& stream(const MessageStream::Key& key);
  std::unique_ptr<Channel> open(const MessageStream::Key& key);
  Flag& doorbell() {
    return own_doorbell_ && own_doorbell_->flag() ? *own_doorbell_->flag() : local_doorbell_;
  }
  void open_doorbell();
  void start_thread();
  bool serve(Rest* rest, bool* moved);
  void thread_main();

  // Does what can be done now of a stream's requests; true if one has ended.
  bool drive(MessageStream& stream, const bool* caller_done);
  void tell_others(const Status& status);
  // Goes on with transfers of requests that have ended; true as long as there are some.
  bool tend(MessageStream& stream);
  Status refusal_after_stop() const;

  const World& world_;
  const int generation_;
  const Finish finish_;

  std::mutex mutex_;
  std::condition_variable out_;
  LinkMemory link_memory_;
  std::map<MessageStream::Key, std::unique_ptr<MessageStream>> streams_;
  std::deque<std::pair<Request*, Status>> refused_;
  std::optional<Doorbell> own_doorbell_;  // where this rank shares its host
  std::optional<SlotAllocator> allocator_;
  Flag local_doorbell_;
  Status given_up_;
  bool is_stopped_ = false;
  int callers_ = 0;
  std::atomic<bool> is_broken_{false};
  std::thread thread_;
};

}  // namespace ringar
