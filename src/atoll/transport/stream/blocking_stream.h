// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/transport/stream/byte_stream.h"
#include "atoll/transport/stream/credentials.h"
#include "atoll/transport/stream/host_port.h"

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
  void wait_for(short events, Deadline deadline) const;
  Error lost(int error_number) const;

  std::string name_;
  ByteStream stream_;
};

}  // namespace atl::transport
