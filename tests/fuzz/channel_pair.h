// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <thread>
#include <vector>

#include "atoll/transport/endpoint.h"

namespace atl::fuzz {

/// Two ends of a shared-memory link in this process: rank 0 runs normally, and rank 1 sends what the input says.
class ChannelPair {
 public:
  struct Quiet : transport::LinkObserver {
    void on_control(transport::Link&, std::span<const std::byte>) override {}
    void on_link_failed(transport::Link&, const Error&, bool closed_in_order) override {
      if (!closed_in_order) std::abort();
    }
  };

  static ChannelPair& get() {
    static ChannelPair pair;
    return pair;
  }

  std::vector<transport::PeerAddress> members() const { return {honest.address(), strange.address()}; }
  transport::Link& link() { return strange.link(honest.address()); }

  /// Sends from rank 1, as soon as both ends have the channel.
  static void send_first(transport::Channel& channel, const transport::FrameHeader& header) {
    while (!channel.try_send(header, {})) std::this_thread::yield();
  }

  Quiet observer;
  transport::Endpoint honest{options("rank 0"), observer};
  transport::Endpoint strange{options("rank 1"), observer};
  std::uint64_t groups = 0;

 private:
  static transport::EndpointOptions options(const char* name) {
    transport::EndpointOptions options;
    options.job = "fuzz";
    options.name = name;
    options.key.resize(32);
    options.transport = transport::TransportChoice::kShm;
    options.shm_window_bytes = std::size_t{64} << 10;
    return options;
  }
};

}  // namespace atl::fuzz
