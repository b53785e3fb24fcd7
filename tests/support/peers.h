// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "atoll/core/fd.h"
#include "atoll/transport/endpoint.h"

// Two endpoints that run one test together, as threads of the test process or as two processes.
namespace atl::test {

/// Longest time a test waits for something that must happen.
inline constexpr std::chrono::seconds kPatience{20};

/// Keeps what an endpoint reports; tests wait for it.
class RecordingObserver : public transport::LinkObserver {
 public:
  struct Failure {
    transport::PeerId peer;
    Error error;
    bool closed_in_order;
    Clock::time_point when;
  };

  void on_control(transport::Link& link, std::span<const std::byte> message) override;
  void on_link_failed(transport::Link& link, const Error& error, bool closed_in_order) override;

  /// Waits until `count` control messages arrived; returns all so far. Throws Error(kTimeout) after kPatience.
  std::vector<std::string> wait_for_controls(std::size_t count);

  /// Waits for the first failure. Throws Error(kTimeout) after `limit`.
  Failure wait_for_failure(std::chrono::nanoseconds limit = kPatience);

  std::size_t failure_count() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> controls_;
  std::vector<Failure> failures_;
};

/// A connection between the two roles outside what is tested.
class Meeting {
 public:
  explicit Meeting(Fd socket) : socket_(std::move(socket)) {}

  /// Sends `mine` to the other role and returns its bytes. Throws Error(kTimeout) after kPatience, Error(kPeerLost) if
  /// the other role ended.
  std::string exchange(const std::string& mine);
  void meet() { exchange(""); }

  /// Blocks until the other end is closed, as it is when a killed process has gone.
  void wait_for_end();

 private:
  std::string read_exactly(std::size_t bytes);
  Fd socket_;
};

enum class PeerMode { kThreads, kProcesses };

struct Peer {
  int index;  ///< 0 or 1; 0 runs in the test process
  transport::Endpoint& endpoint;
  RecordingObserver& observer;
  transport::PeerAddress other;
  Meeting& meeting;
  pid_t other_process;  ///< for index 0 in mode kProcesses, else 0

  transport::Link& link() const { return endpoint.link(other); }
  transport::Channel& channel(std::uint32_t number = 0, transport::Bell bell = transport::Bell::kCollective) const;
};

using Role = std::function<void(Peer&)>;

/// How the second peer is expected to end in mode kProcesses.
enum class Ending { kReturns, kKilled };

/// Makes an endpoint for each role, exchanges their addresses and runs both roles to their end. An exception or a
/// failed expectation in either one fails the calling test. Call it while the process has no other threads.
void run_peers(PeerMode mode, const std::vector<transport::EndpointOptions>& options, const Role& first,
               const Role& second, Ending ending = Ending::kReturns);

/// Options for peers of one test job on this machine.
transport::EndpointOptions peer_options(transport::TransportChoice transport, int index);

/// Waits until `condition()` holds, sleeping on the endpoint's `bell` in between. Throws Error(kTimeout) naming `what`
/// after `limit`.
void wait_on_bell(transport::Endpoint& endpoint, transport::Bell bell, const std::string& what,
                  const std::function<bool()>& condition, std::chrono::nanoseconds limit = kPatience);

/// Waits until `condition()` holds, polling it whenever the processor is free. For states that nothing announces.
void wait_until(const std::string& what, const std::function<bool()>& condition,
                std::chrono::nanoseconds limit = kPatience);

void send(Peer& peer, transport::Channel& channel, const transport::FrameHeader& header,
          std::span<const std::byte> payload, transport::Bell bell = transport::Bell::kCollective);
const transport::Frame& receive(Peer& peer, transport::Channel& channel,
                                transport::Bell bell = transport::Bell::kCollective);

}  // namespace atl::test
