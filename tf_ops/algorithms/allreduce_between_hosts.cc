// Which way an allreduce takes between hosts.
//
//   small             recursive doubling between hosts, in the handshake (handshake.cc)
//   middle, large     hierarchical: shared memory in each host; in each rail halving and doubling,
//                     or a ring
//   ring              forced: a ring of all ranks, hosts or not (ring.h)
//   recursive_doubling, halving_doubling  forced: of all ranks, hosts or not
//
// What is small, and what is large, are tables by the number of hosts, made from a cost model
// (ringar/job/cost_model/) or measured (engine/calibration.h).

#include <algorithm>
#include <cstring>

#include "algorithms/between_hosts.h"
#include "algorithms/halving_doubling.h"
#include "algorithms/ring.h"

namespace ringar {
namespace {

// A range of an array, on its way through recursive doubling. Partial results are held as they
// travel; inside a host nothing is narrowed.
class SmallAllreduce : public HandshakePayload {
 public:
  SmallAllreduce(const Request& request, const BufferList& array, size_t begin, size_t end)
      : spec_(request.spec), array_(array), begin_(begin), end_(end), codec_(request.spec) {}

  size_t bytes() const override { return codec_.wire_bytes(end_ - begin_); }

  void publish(IntraNodeCommunicator& host) override {
    array_.gather(begin_, end_, host.send_buffer(host.rank()));
  }

  void reduce_host(IntraNodeCommunicator& host, std::byte* partial) override {
    if (host.size() == 1) return take_own_part(partial);
    auto& sources = host.workspace().sources;
    alignas(64) std::byte sum[WireCodec::kTile];
    for (size_t at = 0, n = 0; at < end_ - begin_; at += n) {
      n = std::min(WireCodec::kTile, end_ - begin_ - at);
      for (int r = 0; r < host.size(); ++r)
        sources[static_cast<size_t>(r)] = host.send_buffer(r) + at;
      reduce({spec_.dtype, spec_.op, spec_.prescale}, sources.data(), host.size(), sum,
             n / size_of(spec_.dtype));
      codec_.put(sum, partial + codec_.wire_bytes(at), n);
    }
  }

  void take_own_part(std::byte* partial) const { codec_.begin(array_, begin_, end_, partial); }

  void combine(const std::byte* low, const std::byte* high, std::byte* to) override {
    const DataType dtype = codec_.wire_dtype();
    const std::byte* const sources[] = {low, high};
    reduce({dtype, spec_.op}, sources, 2, to, bytes() / size_of(dtype));
  }

  void finish(std::byte* partial) const { codec_.end(array_, begin_, end_, partial); }

 private:
  const Spec& spec_;
  const BufferList& array_;
  const size_t begin_, end_;
  const WireCodec codec_;
};

Status on_the_way(Communicator& c, const Request& request, const BufferList& array) {
  SmallAllreduce work(request, array, 0, array.size());
  std::byte* result = nullptr;
  RINGAR_RETURN_IF_ERROR(handshake_between_hosts(c, &work, &result));
  c.op_state().timed(Span::kCopy, [&] { work.finish(result); });
  return {};
}

// Arrays of any size, as many bytes at a time as a message takes.
Status by_recursive_doubling(Communicator& c, const Request& request, const BufferList& array) {
  RINGAR_RETURN_IF_ERROR(handshake_between_hosts(c));
  Message message(c.buffers().at(0, Message::kMaxBytes));
  Message partner_message(c.buffers().at(1, Message::kMaxBytes));
  for (size_t begin = 0; begin < array.size(); begin += kMaxPartialBytes) {
    const size_t end = std::min(array.size(), begin + kMaxPartialBytes);
    SmallAllreduce part(request, array, begin, end);
    message.check() = {};
    part.take_own_part(message.partial());
    RINGAR_RETURN_IF_ERROR(RecursiveDoubling(c.everybody(), &part, message, partner_message).run());
    part.finish(message.partial());
  }
  return {};
}

Status by(LongWay way, Communicator& c, const Request& request, const BufferList& array) {
  RINGAR_RETURN_IF_ERROR(handshake_between_hosts(c));
  return long_allreduce(c, c.everybody(), way, request.spec, array);
}

}  // namespace

LongWay long_way(const Communicator& c, size_t bytes) {
  return bytes <= c.world().halving_doubling_bytes_for(c.hosts()) ? LongWay::kHalvingDoubling
                                                                  : LongWay::kRing;
}

LinkTuning tuning_of(LongWay way, size_t wire_bytes, int ranks) {
  return way == LongWay::kRing ? link_tuning(wire_bytes, ranks) : halving_tuning(wire_bytes, ranks);
}

std::unique_ptr<InLanes> open_lanes(LongWay way, InterNodeCommunicator& group, const Spec& spec,
                                    const Chunks& chunks, const WireCodec& codec,
                                    StagingBuffers& buffers, int lanes) {
  if (way == LongWay::kRing)
    return std::make_unique<Ring>(group, Ring::kAllreduce, chunks, codec, buffers, lanes);
  return std::make_unique<HalvingDoubling>(group, spec, chunks, codec, buffers, lanes);
}

Status long_allreduce(Communicator& c, InterNodeCommunicator& group, LongWay way, const Spec& spec,
                      const BufferList& array) {
  const WireCodec codec(spec);
  const LinkTuning tuning = tuning_of(way, codec.wire_bytes(array.size()), group.size());
  const Chunks chunks =
      Chunks::of_blocks(array, group.size(), codec.array_bytes(tuning.chunk_bytes));
  return open_lanes(way, group, spec, chunks, codec, c.buffers(), tuning.lanes)
      ->run(wait_policy_for(array.size()));
}

Status allreduce_between_hosts(Communicator& c, Request& request) {
  const BufferList& array = c.host().workspace().list_of(request);
  switch (c.op_state().signature.algorithm) {
    case Algorithm::kRing:
      return by(LongWay::kRing, c, request, array);
    case Algorithm::kHalvingDoubling:
      return by(LongWay::kHalvingDoubling, c, request, array);
    case Algorithm::kRecursiveDoubling:
      return by_recursive_doubling(c, request, array);
    default:
      break;
  }
  // What all ranks compute alike, whatever their hosts have.
  const size_t limit =
      std::min(c.handshake_bytes(), c.world().recursive_doubling_bytes_for(c.hosts()));
  return array.size() <= limit ? on_the_way(c, request, array)
                               : allreduce_hierarchical(c, request, array);
}

}  // namespace ringar
