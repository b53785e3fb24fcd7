// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/peers.h"
#include "tests/transport/ucx/support.h"

namespace atl::test {

struct LinkContractParam {
  transport::TransportChoice transport;
  PeerMode mode;
  const char* rails = "";        ///< ATOLL_RAILS
  std::string ucx_transports{};  ///< the ones that UCX may use; "tcp": as between two hosts
  bool tls = false;              ///< ATOLL_TLS
};

/// The promises of every kind of link (link.h). The tests are in link_contract*_test.cpp; a kind of link runs them all:
///   INSTANTIATE_TEST_SUITE_P(Shm, LinkContract, link_contract_params(TransportChoice::kShm), link_contract_name);
class LinkContract : public testing::TestWithParam<LinkContractParam> {
 protected:
  LinkContract() : ucx_(GetParam().ucx_transports) {}

  void SetUp() override {
    if (GetParam().transport != transport::TransportChoice::kUcx) return;
    if (const std::string why = ucx_is_absent(); !why.empty()) GTEST_SKIP() << why;
  }

  std::vector<transport::EndpointOptions> options() const {
    std::vector<transport::EndpointOptions> both{peer_options(GetParam().transport, 0),
                                                 peer_options(GetParam().transport, 1)};
    for (auto& each : both) {
      each.rails = GetParam().rails;
      each.tls = GetParam().tls;
    }
    if (GetParam().ucx_transports == kUcxNetwork) {
      both[0].host = "one";
      both[1].host = "another";
    }
    return both;
  }
  bool as_processes() const { return GetParam().mode == PeerMode::kProcesses; }

  /// Runs both roles in the mode of this run.
  void run(const Role& first, const Role& second) const { run_peers(GetParam().mode, options(), first, second); }

  /// Both peers play `role`.
  void run(const Role& role) const { run(role, role); }

 private:
  const UcxTransports ucx_;
};

inline auto link_contract_params(transport::TransportChoice transport, const std::string& ucx_transports = "",
                                 const char* rails = "", bool tls = false) {
  return testing::Values(LinkContractParam{transport, PeerMode::kThreads, rails, ucx_transports, tls},
                         LinkContractParam{transport, PeerMode::kProcesses, rails, ucx_transports, tls});
}

inline std::string link_contract_name(const testing::TestParamInfo<LinkContractParam>& info) {
  return info.param.mode == PeerMode::kThreads ? "Threads" : "Processes";
}

/// `bytes` of a pattern that depends on `seed`.
std::vector<std::byte> pattern(std::uint64_t seed, std::size_t bytes);

/// A header for `payload_bytes` with every field derived from `seed`.
transport::FrameHeader numbered_header(std::uint64_t seed, std::size_t payload_bytes);

/// Sends a frame and takes the other's.
void greet(Peer& peer, transport::Channel& channel);
inline void greet(Peer& peer) { greet(peer, peer.channel()); }

/// Two roles. A channel that only the sender has opened is closed when it is full of frames: it takes more all the
/// same.
void send_to_unclaimed(Peer& peer);
void close_unclaimed(Peer& peer);

}  // namespace atl::test
