// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/auth.h"
#include "atoll/transport/stream/credentials.h"

namespace atl::transport {

/// The part of Credentials that TlsSession uses.
struct Credentials::State {
  struct FreeContext {
    void operator()(SSL_CTX* context) const noexcept { SSL_CTX_free(context); }
  };

  explicit State(CredentialsKind kind_of_proof);
  ~State();

  const CredentialsKind kind;
  Mac pre_shared_key{};  // for kKey; derived from the key, which may serve other purposes too
  std::unique_ptr<SSL_CTX, FreeContext> context;
};

/// One end of a TLS connection, as error messages describe it.
struct TlsSide {
  CredentialsKind kind = CredentialsKind::kKey;
  bool is_open = false;  ///< the handshake is over
  std::string name{};    ///< of the other end: "10.0.0.2:4711"
  std::string host{};    ///< whose certificate a client accepts
};

/// One end of a TLS 1.3 connection as a state machine without a socket: bytes from the other end go in, bytes for it
/// come out. Not thread-safe. After an exception only output() may be used: it may hold the alert for the other end.
class TlsSession {
 public:
  /// `name` is the other end's, for messages. Throws Error(kInvalidArgument) for a client with certificates but without
  /// the server's `host`, Error(kUnavailable) when out of memory.
  TlsSession(std::shared_ptr<const Credentials> credentials, TlsRole role, std::string name, std::string host);
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  /// Supplies what the other end sent. Borrowed until it is consumed or replaced; rest() returns what is left of it.
  void give(std::span<const std::byte> input) noexcept { wire_.input = input; }
  std::span<const std::byte> rest() const noexcept { return wire_.input; }

  /// The bytes to send to the other end. The caller clears what it has sent.
  std::vector<std::byte>& output() noexcept { return wire_.output; }

  /// Starts or continues the handshake; returns whether it is complete, and otherwise needs more input. A client's may
  /// be complete before the server has checked its certificate. Throws Error(kRefused), Error(kProtocol), or
  /// Error(kPeerLost) for a goodbye.
  bool handshake();

  /// After the handshake: decrypts as much input as fits into `into` and returns the number of bytes. 0: more input is
  /// needed, or the other end has ended. Throws as handshake() does, once everything before the fault was returned.
  std::size_t read(std::span<std::byte> into);

  /// Returns whether the other end said goodbye, so that no byte that it sent is missing.
  bool has_ended() const noexcept { return ended_; }

  /// Returns whether the next read() returns 0 for the goodbye, or throws, without further input.
  bool is_read_out() const noexcept { return ended_ || failure_.has_value(); }

  /// After the handshake: encrypts the first bytes of `bytes`, at most one record (16 KiB), and returns their number.
  /// 0: it must wait for the rest of a message from the other end.
  std::size_t write(std::span<const std::byte> bytes);

  /// Sets the number of records (of at most 16 KiB) that are encrypted with one key. AES-GCM is safe for about 2^24.5
  /// of them (RFC 8446 section 5.5), 380 GiB; the default is a little less than a fifth of that.
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
    void operator()(SSL* ssl) const noexcept { SSL_free(ssl); }
  };

  void expect_proof() const;
  void name_host();
  Error explain() const;
  void renew_key() noexcept;

  std::shared_ptr<const Credentials> credentials_;
  TlsSide side_;
  Wire wire_;
  std::unique_ptr<SSL, Free> ssl_;
  std::uint64_t records_per_key_ = std::uint64_t{1} << 22;
  std::uint64_t records_ = 0;
  std::uint64_t key_renewals_ = 0;
  bool ended_ = false;
  std::optional<Error> failure_;  // of read(), which first returns what came before it
};

}  // namespace atl::transport
