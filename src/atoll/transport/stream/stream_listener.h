// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "atoll/core/fd.h"
#include "atoll/core/loop.h"

namespace atl::transport {

/// Accepts TCP connections on one address. All on the loop thread.
class StreamListener {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    /// On the loop: a non-blocking socket. `peer` is the other end's address, for messages. The listener may be
    /// destroyed inside.
    virtual void on_connection(Fd socket, const std::string& peer) = 0;
  };
  /// Listens on `host` ("127.0.0.1", "::1", "0.0.0.0", "::" for IPv6 and IPv4, a name) and `port` (0: any). Throws
  /// Error(kUnavailable) naming the address and the reason. Running out of descriptors pauses it for a moment, while
  /// connections wait.
  StreamListener(Loop& loop, Owner& owner, const std::string& host, std::uint16_t port);
  ~StreamListener();
  StreamListener(const StreamListener&) = delete;
  StreamListener& operator=(const StreamListener&) = delete;

  // Any thread.
  std::uint16_t port() const noexcept;
  std::string address() const;  ///< "127.0.0.1:4711"

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // lives through a call to the owner that destroys the listener
};

}  // namespace atl::transport
