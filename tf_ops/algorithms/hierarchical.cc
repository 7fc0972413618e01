// Allreduce in two levels: shared memory inside each host; in each rail between hosts a ring, or
// halving and doubling, as the table of sizes says (allreduce_between_hosts.cc).
//
// A block of the array is cut into one slice per rail. On every host the ranks reduce the block in
// shared memory, the slice of rail l by the rank in it (essay of shared_memory_reduce.cc); the
// rails, side by side, add up the hosts' slices; then every rank copies the slices of
// the other rails from its host's shared segment. With h hosts of l ranks and K bytes, 2 (h-1)/h K
// cross each host's link in each direction: those of one rank per host, where a ring of all h l
// ranks sends 2 (h l - 1)/(h l) K across it. A rank waits for 2 (h-1) messages one after the other,
// or 2 ceil(log2 h), instead of 2 (h l - 1), and l processes share the work of driving the link. So
// it wins over the flat ring wherever hosts have several ranks and the array is long; a short one
// goes by recursive doubling between the hosts (handshake.cc), log2(h) messages one after the
// other. It would lose only where shared memory were slower than the link, since every byte passes
// through it.
//
// The three stages of consecutive blocks overlap: while block k is reduced on the host, blocks
// k - lanes … k - 1 are on their way in the rail, and block k - lanes is copied out:
//
//   step k     reduce block k on the host
//              wait for block k - lanes from the rail, and put its slice into the result buffer
//              copy the other rails' slices of block k - lanes - 1 from their result buffers
//
// Buffers hold a slice of `slice_bytes`, which may be less than the chunks of one block
// make: then each step is several turns. A rank in no rail reduces no slice, and only reads.
//
// With one rank per host there is the rail and nothing else.

#include <algorithm>
#include <memory>

#include "algorithms/between_hosts.h"
#include "engine/copy.h"
#include "engine/tuning.h"

namespace ringar {
namespace {

using Chunk = Chunks::Chunk;

// Turn `turn` of the steps of a chunk.
Chunk in_turn(const Chunk& chunk, size_t turn, size_t bytes) {
  const size_t begin = std::min(chunk.end, chunk.begin + turn * bytes);
  return {chunk.array, begin, std::min(chunk.end, begin + bytes)};
}

class Hierarchical {
 public:
  // `sums` is `array` with its outputs as inputs, too: they hold the sums of the host.
  Hierarchical(Communicator& c, LongWay way, const Spec& spec, const BufferList& array,
               const BufferList& sums)
      : c_(c),
        host_(c.host()),
        spec_(spec),
        array_(array),
        sums_(sums),
        codec_(WireCodec(spec).unscaled_inputs()),
        tuning_(tuning_of(way, codec_.wire_bytes(array.size()), c.hosts() * c.rails())),
        chunks_(Chunks::of_blocks(sums, c.hosts(), codec_.array_bytes(tuning_.chunk_bytes),
                                  c.rail() ? host_.rank() : 0, c.rails())),
        slice_bytes_(host_.slice_bytes()),
        turns_((chunks_.largest() * static_cast<size_t>(c.hosts()) + slice_bytes_ - 1) /
               slice_bytes_),
        depth_(std::min(static_cast<size_t>(tuning_.lanes), chunks_.count())) {
    if (c.rail())
      lanes_ = open_lanes(way, *c.rail(), spec, chunks_, codec_, c.buffers(), tuning_.lanes);
  }

  Status run() {
    c_.op_state().in_flight = lanes_.get();
    const Status status = run_steps();
    c_.op_state().in_flight = nullptr;
    return status;
  }

 private:
  Status run_steps() {
    const size_t blocks = chunks_.count();
    for (size_t k = 0; k < blocks + depth_; ++k) {
      if (k >= depth_ && lanes_)
        RINGAR_RETURN_IF_ERROR(lanes_->wait_for(k - depth_ + 1, WaitPolicy::kPatient));
      for (size_t turn = 0; turn < turns_; ++turn) RINGAR_RETURN_IF_ERROR(take_turn(k, turn));
      if (lanes_) lanes_->release(std::min(blocks, k + 1));
    }
    return copy_results();
  }

  Status take_turn(size_t k, size_t turn) {
    const bool in = k < chunks_.count(), out = k >= depth_;
    if (in) c_.op_state().timed(Span::kCopy, [&] { publish(k, turn); });
    RINGAR_RETURN_IF_ERROR(host_.exchange());
    if (in && lanes_) c_.op_state().timed(Span::kReduce, [&] { reduce_slice(k, turn); });
    if (out && lanes_)
      c_.op_state().timed(Span::kCopy, [&] {
        const Chunk slice = in_turn(chunks_.slice(k - depth_, host_.rank()), turn, slice_bytes_);
        sums_.gather(slice.begin, slice.end, host_.result(host_.rank(), host_.step()));
      });
    if (out) host_.post_result();
    RINGAR_RETURN_IF_ERROR(copy_results());
    if (out) unread_ = {true, k - depth_, turn, host_.step()};
    host_.finish_step();
    return {};
  }

  // Copies the slices of the others' rails to this rank's send buffer.
  void publish(size_t k, size_t turn) {
    for (int rail = 0; rail < c_.rails(); ++rail) {
      const Chunk slice = in_turn(chunks_.slice(k, rail), turn, slice_bytes_);
      if (rail != host_.rank())
        array_.gather(slice.begin, slice.end,
                      host_.send_buffer(host_.rank()) + slice_bytes_ * static_cast<size_t>(rail));
    }
  }

  // Reduces this rank's slice from its own input and the others' send buffers, in rank order.
  void reduce_slice(size_t k, size_t turn) {
    const Chunk slice = in_turn(chunks_.slice(k, host_.rank()), turn, slice_bytes_);
    const size_t at = slice_bytes_ * static_cast<size_t>(host_.rank());
    auto& sources = host_.workspace().sources;
    array_.for_each(slice.begin, slice.end,
                    [&](const std::byte* input, std::byte* output, size_t bytes, size_t offset) {
                      for (int r = 0; r < host_.size(); ++r)
                        sources[static_cast<size_t>(r)] =
                            r == host_.rank() ? input : host_.send_buffer(r) + at + offset;
                      reduce({spec_.dtype, spec_.op, spec_.prescale}, sources.data(), host_.size(),
                             output, bytes / size_of(spec_.dtype));
                    });
  }

  // Copies the others' result buffers of the turn before.
  Status copy_results() {
    if (!unread_.any) return {};
    unread_.any = false;
    for (int rail = 0; rail < c_.rails(); ++rail) {
      if (rail == host_.rank()) continue;
      RINGAR_RETURN_IF_ERROR(host_.wait_for_result(rail, unread_.step));
      const Chunk slice = in_turn(chunks_.slice(unread_.block, rail), unread_.turn, slice_bytes_);
      c_.op_state().timed(Span::kCopy, [&] {
        sums_.scatter(slice.begin, slice.end, host_.result(rail, unread_.step));
      });
    }
    return {};
  }

  struct Unread {
    bool any = false;
    size_t block = 0, turn = 0;
    uint64_t step = 0;
  };

  Communicator& c_;
  IntraNodeCommunicator& host_;
  const Spec& spec_;
  const BufferList& array_;
  const BufferList& sums_;
  const WireCodec codec_;
  const LinkTuning tuning_;
  const Chunks chunks_;
  const size_t slice_bytes_, turns_, depth_;
  std::unique_ptr<InLanes> lanes_;  // null for a rank in no rail
  Unread unread_;
};

}  // namespace

Status allreduce_hierarchical(Communicator& c, const Request& request, const BufferList& array) {
  RINGAR_RETURN_IF_ERROR(handshake_for(c, array.size()));
  const LongWay way = long_way(c, array.size());
  if (c.host().size() == 1) return long_allreduce(c, *c.rail(), way, request.spec, array);
  BufferList& sums = c.host().workspace().sums();
  array.for_each(0, array.size(), [&](const std::byte*, std::byte* output, size_t bytes, size_t) {
    sums.append(output, output, bytes);
  });
  return Hierarchical(c, way, request.spec, array, sums).run();
}

}  // namespace ringar
