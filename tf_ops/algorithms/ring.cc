#include "algorithms/ring.h"

#include <algorithm>

namespace ringar {
namespace {

// Part i of n equal ones, in whole cache lines.
Pieces::Piece part(const Pieces::Piece& whole, int i, int n) {
  const size_t parts = static_cast<size_t>(n);
  const size_t share = ((whole.size() + parts - 1) / parts + 63) / 64 * 64;
  const auto edge = [&](int k) {
    return std::min(whole.end, whole.begin + share * static_cast<size_t>(k));
  };
  return {whole.array, edge(i), edge(i + 1)};
}

}  // namespace

Pieces Pieces::of_blocks(const VirtualArray& array, int ranks, size_t piece_bytes, int column,
                         int columns) {
  Pieces pieces;
  pieces.array_ = &array;
  pieces.ranks_ = ranks;
  pieces.column_ = column;
  pieces.columns_ = columns;
  pieces.piece_bytes_ = piece_bytes;
  const size_t block = piece_bytes * static_cast<size_t>(ranks * columns);
  pieces.count_ = (array.size() + block - 1) / block;
  return pieces;
}

Pieces Pieces::of_shares(const std::vector<VirtualArray>& shares, size_t piece_bytes) {
  Pieces pieces;
  pieces.shares_ = &shares;
  pieces.piece_bytes_ = piece_bytes;
  size_t longest = 0;
  for (const VirtualArray& share : shares) longest = std::max(longest, share.size());
  pieces.count_ = (longest + piece_bytes - 1) / piece_bytes;
  return pieces;
}

Pieces::Piece Pieces::block(size_t k) const {
  const size_t bytes = piece_bytes_ * static_cast<size_t>(ranks_ * columns_);
  return {array_, std::min(array_->size(), k * bytes), std::min(array_->size(), (k + 1) * bytes)};
}

Pieces::Piece Pieces::slice(size_t k, int column) const {
  return part(block(k), column, columns_);
}

Pieces::Piece Pieces::piece(int rank, size_t k) const {
  if (!shares_) return part(slice(k, column_), rank, ranks_);
  const VirtualArray& share = (*shares_)[static_cast<size_t>(rank)];
  return {&share, std::min(share.size(), k * piece_bytes_),
          std::min(share.size(), (k + 1) * piece_bytes_)};
}

Ring::Ring(LinkGroup& group, Kind kind, const Pieces& pieces, const Hop& hop, Buffers& buffers,
           int lanes)
    : group_(group),
      pieces_(pieces),
      hop_(hop),
      hops_(group.size() - 1),
      first_step_(kind == kAllGather ? hops_ : 0),
      last_step_(kind == kReduceScatter ? hops_ - 1 : 2 * hops_ - 1) {
  const size_t count = std::min(static_cast<size_t>(lanes), pieces.count());
  const size_t bytes = hop.wire_bytes(pieces.largest());
  for (size_t i = 0; i < count; ++i)
    lanes_.push_back({i, -1, buffers.at(2 * i, bytes), buffers.at(2 * i + 1, bytes)});
}

int Ring::outgoing(int step) const {
  return step < hops_ ? segment(step + 1) : segment(step - hops_);
}

int Ring::incoming(int step) const {
  return outgoing(step + 1);
}

Status Ring::start(Lane& lane, int channel) {
  lane.step = first_step_;
  const Pieces::Piece mine = pieces_.piece(outgoing(first_step_), lane.piece);
  group_.timed(Stretch::kCopy, [&] {
    if (first_step_ == 0)
      hop_.begin(*mine.array, mine.begin, mine.end, lane.holding);
    else
      mine.array->gather(mine.begin, mine.end, lane.holding);
  });
  return post(lane, channel);
}

// Both ends know where a piece is empty: then there is no message.
Status Ring::post(Lane& lane, int channel) {
  const size_t in = hop_.wire_bytes(pieces_.piece(incoming(lane.step), lane.piece).size());
  const size_t out = hop_.wire_bytes(pieces_.piece(outgoing(lane.step), lane.piece).size());
  if (in)
    RINGAR_RETURN_IF_ERROR(
        group_.receive(group_.neighbor(-1), channel, lane.incoming, in, &lane.receiving));
  if (out)
    RINGAR_RETURN_IF_ERROR(
        group_.send(group_.neighbor(1), channel, lane.holding, out, &lane.sending));
  return {};
}

void Ring::take_in(Lane& lane) {
  const Pieces::Piece piece = pieces_.piece(incoming(lane.step), lane.piece);
  if (lane.step >= hops_)
    group_.timed(Stretch::kCopy,
                 [&] { hop_.deliver(*piece.array, piece.begin, piece.end, lane.incoming); });
  else
    group_.timed(Stretch::kReduce, [&] {
      if (lane.step == hops_ - 1)
        hop_.add_last(*piece.array, piece.begin, piece.end, lane.incoming);
      else
        hop_.add(*piece.array, piece.begin, piece.end, lane.incoming);
    });
  std::swap(lane.holding, lane.incoming);
}

Status Ring::advance(bool* moved) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    const int channel = static_cast<int>(i);
    if (lane.step < 0) {
      if (lane.piece >= released_ || lane.piece >= pieces_.count()) continue;
      RINGAR_RETURN_IF_ERROR(start(lane, channel));
      *moved = true;
    }
    RINGAR_RETURN_IF_ERROR(group_.poll(&lane.receiving, moved));
    RINGAR_RETURN_IF_ERROR(group_.poll(&lane.sending, moved));
    if (lane.receiving >= 0 || lane.sending >= 0) continue;
    *moved = true;
    take_in(lane);
    if (lane.step++ < last_step_) {
      RINGAR_RETURN_IF_ERROR(post(lane, channel));
    } else {
      lane.step = -1;
      lane.piece += lanes_.size();
    }
  }
  return {};
}

Status Ring::keep_going() {
  bool moved = false;
  RINGAR_RETURN_IF_ERROR(group_.progress());
  return advance(&moved);
}

bool Ring::has_finished(size_t count) const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [&](const Lane& lane) { return lane.piece >= count; });
}

Status Ring::run(LinkGroup::Haste haste) {
  release(pieces_.count());
  return group_.until_done(haste, [&](bool* moved, bool* done) -> Status {
    RINGAR_RETURN_IF_ERROR(advance(moved));
    *done = has_finished(pieces_.count());
    return {};
  });
}

}  // namespace ringar
