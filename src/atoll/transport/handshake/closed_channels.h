// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <set>

#include "atoll/transport/handshake/link_base.h"
#include "atoll/transport/link.h"

namespace atl::transport {

/// The channels of a link that this side has closed before the peer opened them, which it may still do: what it sends
/// on them is dropped. Of many, the oldest are forgotten. Guarded by the link's mutex of channels.
class ClosedChannels {
 public:
  void add(const ChannelId& id) {
    if (!ids_.insert(id).second) return;
    order_.push_back(id);
    if (order_.size() <= kMaxUnclaimedChannels) return;
    ids_.erase(order_.front());
    order_.pop_front();
  }

  /// Removes the channel; returns whether it was one of them.
  bool take(const ChannelId& id) { return ids_.erase(id) != 0; }

 private:
  std::set<ChannelId> ids_;
  std::deque<ChannelId> order_;
};

}  // namespace atl::transport
