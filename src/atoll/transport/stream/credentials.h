// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace atl::transport {

/// The end of a TLS connection: the one that connects, or the one that accepts.
enum class TlsRole { kClient, kServer };

enum class CredentialsKind { kKey, kCertificates };

/// The proof by which both ends authenticate each other: a shared key, or certificates. Made once, used for any number
/// of streams and threads.
class Credentials {
 public:
  /// Uses a key that both ends hold (at least kMinKeyBytes) as external PSK with ephemeral Diffie-Hellman, so that a
  /// key learned later does not reveal earlier traffic. Throws Error(kInvalidArgument) for a shorter key.
  static std::shared_ptr<const Credentials> of_key(std::span<const std::byte> key);
  /// Uses the key that read_key_file reads, and throws what it throws.
  static std::shared_ptr<const Credentials> of_key_file(const std::string& path);
  /// Uses PEM files: this end's chain and key, and the authorities of the other end's certificate. Both ends show a
  /// certificate. A client also checks that the server's is for the host name that it connected to. Throws
  /// Error(kUnavailable) for a file that cannot be read, and kInvalidArgument for one with other content and for a key
  /// that users other than its owner may read, that needs a password, or that is not the certificate's.
  static std::shared_ptr<const Credentials> of_certificates(const std::string& chain_file, const std::string& key_file,
                                                            const std::string& authorities_file);
  /// For a client without a certificate: uses the authorities of the server's certificate, from a PEM file, or the
  /// system's if the name is empty. Throws as of_certificates.
  static std::shared_ptr<const Credentials> of_authorities(const std::string& authorities_file);

  struct State;
  explicit Credentials(std::unique_ptr<State> state);
  ~Credentials();
  const State& state() const noexcept { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

inline constexpr std::size_t kMinKeyBytes = 16;
inline constexpr std::size_t kMaxKeyBytes = 4096;

/// Returns the bytes of a key file without the line ends that follow them. Throws Error(kUnavailable) when it cannot be
/// read, and kInvalidArgument when users other than its owner may read or change it, or it is shorter than `least` or
/// longer than kMaxKeyBytes.
std::vector<std::byte> read_key_file(const std::string& path, std::size_t least = kMinKeyBytes);

/// Creates a file that only its owner may read, with 32 random bytes as 64 hexadecimal digits and a line end. Throws
/// Error(kInvalidArgument) when the path already exists, which stays unchanged, and kUnavailable when it cannot be
/// written.
void make_key_file(const std::string& path);

}  // namespace atl::transport
