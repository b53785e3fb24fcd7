// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace atl::test {

/// An interceptor: forwards TCP connections to a target, keeps every byte, and may change one. Point a peer's address
/// at it. Thread-safe.
class WireTap {
 public:
  /// `target` is "127.0.0.1:4711".
  explicit WireTap(const std::string& target);
  ~WireTap();
  WireTap(const WireTap&) = delete;
  WireTap& operator=(const WireTap&) = delete;

  /// "127.0.0.1:4712"
  std::string address() const;

  enum class Way { kToTarget, kFromTarget };

  /// Returns the bytes forwarded in that direction so far, over all connections.
  std::vector<std::byte> recorded(Way way) const;

  std::size_t passed(Way way) const;  ///< the number of those bytes

  /// Changes one bit of the byte that comes `after` more bytes in that direction.
  void flip(Way way, std::uint64_t after);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace atl::test
