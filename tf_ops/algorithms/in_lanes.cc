#include "algorithms/in_lanes.h"

namespace ringar {

void InLanes::open(int lanes, int last_round, StagingBuffers& buffers, size_t bytes_of_sums,
                   size_t bytes_received) {
  last_round_ = last_round;
  const size_t count = std::min(static_cast<size_t>(lanes), count_);
  for (size_t i = 0; i < count; ++i)
    lanes_.push_back(
        {i, -1, buffers.at(2 * i, bytes_of_sums), buffers.at(2 * i + 1, bytes_received)});
}

Status InLanes::advance(bool* moved) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    const int channel = static_cast<int>(i);
    if (lane.round < 0) {
      if (lane.chunk >= released_ || lane.chunk >= count_) continue;
      RINGAR_RETURN_IF_ERROR(start(lane, channel));
      *moved = true;
    }
    RINGAR_RETURN_IF_ERROR(group_.poll(&lane.receiving, moved));
    RINGAR_RETURN_IF_ERROR(group_.poll(&lane.sending, moved));
    if (lane.receiving >= 0 || lane.sending >= 0) continue;
    *moved = true;
    take_in(lane);
    if (lane.round++ < last_round_) {
      RINGAR_RETURN_IF_ERROR(post(lane, channel));
    } else {
      lane.round = -1;
      lane.chunk += lanes_.size();
    }
  }
  return {};
}

}  // namespace ringar
