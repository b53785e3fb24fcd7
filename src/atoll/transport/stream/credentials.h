// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace atl::transport {

/// Which end of a TLS connection: the one that connects, or the one that is connected to.
enum class TlsRole { kClient, kServer };

enum class CredentialsKind { kKey, kCertificates };

/// How both ends know each other: a shared key, or certificates. Made once, used for any number of streams and threads.
class Credentials {
 public:
  /// A key that both ends hold (at least kMinKeyBytes), as external PSK with ephemeral Diffie-Hellman: who learns the
  /// key later cannot read what was sent before. Error(kInvalidArgument) for a shorter one.
  static std::shared_ptr<const Credentials> of_key(std::span<const std::byte> key);
  /// The key that read_key_file (key_file.h) finds there, with its errors.
  static std::shared_ptr<const Credentials> of_key_file(const std::string& path);
  /// PEM files: the own chain and key, and the authorities that the other end's certificate must come from. Both ends
  /// show one. A client also checks that the server's is for the host name that it connected to. Error(kUnavailable)
  /// for a file that cannot be read, kInvalidArgument for one that holds something else, and for a key that others than
  /// its owner may read, that needs a password or is not the certificate's.
  static std::shared_ptr<const Credentials> of_certificates(const std::string& chain_file, const std::string& key_file,
                                                            const std::string& authorities_file);
  /// For a client that shows no certificate of its own, of a foreign server: the authorities that the server's must come
  /// from, in a PEM file, or the system's where the name is empty. Errors as of_certificates.
  static std::shared_ptr<const Credentials> of_authorities(const std::string& authorities_file);

  struct State;
  explicit Credentials(std::unique_ptr<State> state);
  ~Credentials();
  const State& state() const noexcept { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

}  // namespace atl::transport
