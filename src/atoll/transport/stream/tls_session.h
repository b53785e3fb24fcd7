// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/stream/credentials.h"
#include "atoll/transport/stream/tls_failure.h"

struct ssl_st;

namespace atl::transport {

/// One end of a TLS 1.3 connection as a state machine without a socket: bytes from the other end go in, bytes for it
/// come out. Not thread-safe. After an exception nothing but output() may be used: it may hold the alert that tells the
/// other end.
class TlsSession {
 public:
  /// `name` is the other end's, for messages. A client that has certificates also needs the server's `host`:
  /// Error(kInvalidArgument). Error(kUnavailable) when memory is short.
  TlsSession(std::shared_ptr<const Credentials> credentials, TlsRole role, std::string name, std::string host);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  /// What the other end sent. Borrowed until it is used up or replaced; what is left of it, rest() says.
  void give(std::span<const std::byte> input) noexcept { wire_.input = input; }
  std::span<const std::byte> rest() const noexcept { return wire_.input; }

  /// What has to be sent to the other end. The caller clears what it has sent.
  std::vector<std::byte>& output() noexcept { return wire_.output; }

  /// Begins or continues the handshake; returns whether it is complete, and otherwise needs more input. A client's may
  /// be complete before the server has judged its certificate. Throws Error(kRefused), Error(kProtocol), or
  /// Error(kPeerLost) for a goodbye.
  bool handshake();

  /// After the handshake: decrypts input into `into`, as much as there is and fits, and returns how many bytes. 0: more
  /// input is needed, or the other end has ended. Throws as handshake() does, when what came before the fault has been
  /// given out.
  std::size_t read(std::span<std::byte> into);

  /// The other end said goodbye: no byte that it sent is missing.
  bool has_ended() const noexcept { return ended_; }

  /// After the handshake: encrypts the first bytes of `bytes`, at most one record (16 KiB), and returns how many. 0: it
  /// must wait for the rest of a message from the other end.
  std::size_t write(std::span<const std::byte> bytes);

  /// How many records (of at most 16 KiB) are encrypted with one key before the next one takes its place. AES-GCM is sound for some 2^24.5
  /// (RFC 8446 section 5.5), 380 GiB; the default is a good fifth of that.
  void renew_keys_after(std::uint64_t records) noexcept { records_per_key_ = records; }
  std::uint64_t key_renewals() const noexcept { return key_renewals_; }  ///< of what this end writes

  /// After the handshake: tells the other end that nothing follows.
  void say_goodbye() noexcept;

 private:
  struct Wire {
    std::span<const std::byte> input;
    std::vector<std::byte> output;
  };
  struct Bio;  // OpenSSL's view of Wire
  struct Free {
    void operator()(ssl_st* ssl) const noexcept;
  };

  void expect_proof() const;
  void name_host();
  Error explain() const;
  void renew_key() noexcept;

  std::shared_ptr<const Credentials> credentials_;
  TlsSide side_;
  Wire wire_;
  std::unique_ptr<ssl_st, Free> ssl_;
  std::uint64_t records_per_key_ = std::uint64_t{1} << 22;
  std::uint64_t records_ = 0;
  std::uint64_t key_renewals_ = 0;
  bool ended_ = false;
  std::optional<Error> failure_;  // of read(), which gives out first what came before it
};

}  // namespace atl::transport
