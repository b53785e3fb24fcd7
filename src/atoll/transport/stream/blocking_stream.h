// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/core/fd.h"
#include "atoll/transport/stream/credentials.h"
#include "atoll/transport/stream/host_port.h"
#include "atoll/transport/stream/tls_session.h"

namespace atl::transport {

/// A blocking TCP connection, plain or with TLS 1.3, for requests to foreign servers. One thread at a time. Every wait
/// ends at its deadline with Error(kTimeout). After an error the stream must not be used again.
class BlockingStream {
 public:
  /// Connects; without `credentials` bytes travel in clear. Throws what connect_tcp and TlsSession throw.
  BlockingStream(const HostPort& place, std::shared_ptr<const Credentials> credentials, Deadline deadline);

  /// Returns when the system has taken everything. Throws Error(kPeerLost) when the other end is gone.
  void send(std::span<const std::byte> bytes, Deadline deadline);

  /// Waits for at least one byte and returns the number received. Throws Error(kPeerLost) at the end of the stream.
  std::size_t receive(std::span<std::byte> into, Deadline deadline);

  /// "10.0.0.2:6379"
  const std::string& name() const noexcept { return name_; }

 private:
  void shake_hands(Deadline deadline);
  void send_output(Deadline deadline);
  void take_input(Deadline deadline);
  void send_plain(std::span<const std::byte> bytes, Deadline deadline);
  std::size_t receive_plain(std::span<std::byte> into, Deadline deadline);
  void wait_for(short events, Deadline deadline) const;

  std::string name_;
  Fd fd_;
  std::unique_ptr<TlsSession> tls_;
  std::vector<std::byte> input_;  // borrowed by tls_
};

}  // namespace atl::transport
