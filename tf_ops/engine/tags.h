// Who uses which tags of the link. MPI promises those up to 32,767.

#pragma once

#include "engine/inter_node_communicator.h"
#include "engine/spec.h"

namespace ringar {

// Of control messages (peers.h); those of collectives follow (inter_node_communicator.h).
constexpr int kControlTag = 0;

// Of messages between two ranks (link_channel.cc).
constexpr int kTagsOfAMessage = 3;
constexpr int kFirstMessageTag = InterNodeCommunicator::kLastTag + 1;
constexpr int kMessageTags = kTagsOfAMessage * (Spec::kUserTags + Spec::kPipelineTags);

// Of windows (window_service.cc).
constexpr int kWindowRequestTag = 32000, kWindowReplyTag = 32001;
static_assert(kFirstMessageTag + kMessageTags <= kWindowRequestTag, "tags must differ");

}  // namespace ringar
