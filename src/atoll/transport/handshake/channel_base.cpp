// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/handshake/channel_base.h"

#include <string>

namespace atl::transport {

bool ChannelBase::wait_or_throw() const {
  if (link_base_.state() == LinkState::kFailed || link_base_.state() == LinkState::kClosed) link_base_.throw_error();
  return false;
}

void ChannelBase::refuse(const FrameHeader& header, std::size_t payload_bytes) const {
  throw Error(ErrorKind::kInvalidArgument, "a frame of " + std::to_string(payload_bytes) + " bytes, announced as " +
                                               std::to_string(header.payload_bytes) + ", on a channel that takes " +
                                               std::to_string(max_payload_));
}

void ChannelBase::throw_closed(const char* direction) const {
  throw Error(ErrorKind::kAborted,
              std::string("the channel ") + direction + " " + link_base_.peer_name() + " was closed by this side");
}

void ChannelBase::fail(const Error& error) {
  const Error named(error.kind(), link_base_.peer_name() + ": " + error.what());
  link_base_.fail_later(named);
  throw Error(named);
}

}  // namespace atl::transport
