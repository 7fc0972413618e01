// Allreduce in two levels: shared memory inside each host, a ring in each column between hosts.
//
// A block of the array is cut into one slice per column. On every host the ranks reduce the block
// in shared memory, the slice of column l by the rank in it (essay of shared_memory_reduce.cc); the
// rings of the columns, side by side, add up the hosts' slices; then every rank copies the slices
// of the other columns from its host's arena. With h hosts of l ranks and K bytes, 2 (h-1)/h K
// cross each host's link in each direction: those of one rank per host, where a ring of all h l
// ranks sends 2 (h l - 1)/(h l) K across it. A rank waits for 2 (h-1) messages one after the other
// instead of 2 (h l - 1), and l processes share the work of driving the link. So it wins over the
// flat ring wherever hosts have several ranks and the array is long; a short one goes by recursive
// doubling between the hosts (opening.cc), log2(h) messages one after the other. It would lose only
// where shared memory were slower than the link, since every byte passes through it.
//
// The three stages of consecutive blocks overlap: while block k is reduced on the host, blocks
// k - lanes … k - 1 are in the ring, and block k - lanes is copied out:
//
//   step k     reduce block k on the host
//              wait for block k - lanes from the ring, and put its slice into the result box
//              copy the other columns' slices of block k - lanes - 1 from their result boxes
//
// Boxes hold a slice of `slice_bytes`, which may be less than the ring's pieces of one block make:
// then each step is several turns. A rank in no column reduces no slice, and only reads.
//
// With one rank per host there is the ring and nothing else.

#include <algorithm>
#include <memory>

#include "algorithms/between_hosts.h"
#include "algorithms/ring.h"
#include "engine/copy.h"
#include "engine/tuning.h"

namespace ringar {
namespace {

using Piece = Pieces::Piece;

// Turn `turn` of the steps of a piece.
Piece in_turn(const Piece& piece, size_t turn, size_t bytes) {
  const size_t begin = std::min(piece.end, piece.begin + turn * bytes);
  return {piece.array, begin, std::min(piece.end, begin + bytes)};
}

class Hierarchical {
 public:
  // `sums` is the array that has the outputs of `array` for its inputs, too: there lies what the
  // ranks of the host have added up.
  Hierarchical(Communicator& c, const Spec& spec, const VirtualArray& array,
               const VirtualArray& sums)
      : c_(c),
        host_(c.host()),
        spec_(spec),
        array_(array),
        sums_(sums),
        hop_(Hop(spec).unscaled_inputs()),
        tuning_(link_tuning(hop_.wire_bytes(array.size()), c.hosts() * c.columns())),
        pieces_(Pieces::of_blocks(sums, c.hosts(), hop_.array_bytes(tuning_.piece_bytes),
                                  c.column() ? host_.rank() : 0, c.columns())),
        slice_bytes_(host_.slice_bytes()),
        turns_((pieces_.largest() * static_cast<size_t>(c.hosts()) + slice_bytes_ - 1) /
               slice_bytes_),
        depth_(std::min(static_cast<size_t>(tuning_.lanes), pieces_.count())) {
    if (c.column())
      ring_ = std::make_unique<Ring>(*c.column(), Ring::kAllreduce, pieces_, hop_, c.buffers(),
                                     tuning_.lanes);
  }

  Status run() {
    c_.current().in_flight = ring_.get();
    const Status status = run_steps();
    c_.current().in_flight = nullptr;
    return status;
  }

 private:
  Status run_steps() {
    const size_t blocks = pieces_.count();
    for (size_t k = 0; k < blocks + depth_; ++k) {
      if (k >= depth_ && ring_) RINGAR_RETURN_IF_ERROR(wait_for_ring(k - depth_ + 1));
      for (size_t turn = 0; turn < turns_; ++turn) RINGAR_RETURN_IF_ERROR(take_turn(k, turn));
      if (ring_) ring_->release(std::min(blocks, k + 1));
    }
    return copy_results();
  }

  Status take_turn(size_t k, size_t turn) {
    const bool in = k < pieces_.count(), out = k >= depth_;
    if (in) c_.current().timed(Stretch::kCopy, [&] { publish(k, turn); });
    RINGAR_RETURN_IF_ERROR(host_.exchange());
    if (in && ring_) c_.current().timed(Stretch::kReduce, [&] { reduce_slice(k, turn); });
    if (out && ring_)
      c_.current().timed(Stretch::kCopy, [&] {
        const Piece mine = in_turn(pieces_.slice(k - depth_, host_.rank()), turn, slice_bytes_);
        sums_.gather(mine.begin, mine.end, host_.result(host_.rank(), host_.step()));
      });
    if (out) host_.post_result();
    RINGAR_RETURN_IF_ERROR(copy_results());
    if (out) unread_ = {true, k - depth_, turn, host_.step()};
    host_.finish_step();
    return {};
  }

  // The slices of the others' columns to this rank's outbox.
  void publish(size_t k, size_t turn) {
    for (int column = 0; column < c_.columns(); ++column) {
      const Piece slice = in_turn(pieces_.slice(k, column), turn, slice_bytes_);
      if (column != host_.rank())
        array_.gather(slice.begin, slice.end,
                      host_.outbox(host_.rank()) + slice_bytes_ * static_cast<size_t>(column));
    }
  }

  // This rank's slice from its own input and the others' outboxes, in rank order.
  void reduce_slice(size_t k, size_t turn) {
    const Piece slice = in_turn(pieces_.slice(k, host_.rank()), turn, slice_bytes_);
    const size_t at = slice_bytes_ * static_cast<size_t>(host_.rank());
    auto& sources = host_.workspace().sources;
    array_.for_each(slice.begin, slice.end,
                    [&](const std::byte* input, std::byte* output, size_t bytes, size_t offset) {
                      for (int r = 0; r < host_.size(); ++r)
                        sources[static_cast<size_t>(r)] =
                            r == host_.rank() ? input : host_.outbox(r) + at + offset;
                      reduce({spec_.dtype, spec_.op, spec_.prescale}, sources.data(), host_.size(),
                             output, bytes / size_of(spec_.dtype));
                    });
  }

  Status wait_for_ring(size_t count) {
    return c_.column()->until_done(LinkGroup::Haste::kPatient,
                                   [&](bool* moved, bool* done) -> Status {
                                     RINGAR_RETURN_IF_ERROR(ring_->advance(moved));
                                     *done = ring_->has_finished(count);
                                     return {};
                                   });
  }

  // What the others have put into their result boxes in the turn before.
  Status copy_results() {
    if (!unread_.any) return {};
    unread_.any = false;
    for (int column = 0; column < c_.columns(); ++column) {
      if (column == host_.rank()) continue;
      RINGAR_RETURN_IF_ERROR(host_.wait_for_result(column, unread_.step));
      const Piece slice = in_turn(pieces_.slice(unread_.block, column), unread_.turn, slice_bytes_);
      c_.current().timed(Stretch::kCopy, [&] {
        sums_.scatter(slice.begin, slice.end, host_.result(column, unread_.step));
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
  HostGroup& host_;
  const Spec& spec_;
  const VirtualArray& array_;
  const VirtualArray& sums_;
  const Hop hop_;
  const LinkTuning tuning_;
  const Pieces pieces_;
  const size_t slice_bytes_, turns_, depth_;
  std::unique_ptr<Ring> ring_;  // null for a rank in no column
  Unread unread_;
};

}  // namespace

Status allreduce_hierarchical(Communicator& c, const Request& request, const VirtualArray& array) {
  RINGAR_RETURN_IF_ERROR(open_for(c, array.size()));
  if (c.host().size() == 1) return ring_allreduce(c, *c.column(), request.spec, array);
  VirtualArray& sums = c.host().workspace().sums();
  array.for_each(0, array.size(), [&](const std::byte*, std::byte* output, size_t bytes, size_t) {
    sums.append(output, output, bytes);
  });
  return Hierarchical(c, request.spec, array, sums).run();
}

}  // namespace ringar
