// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace atl::test {

/// Somebody on the way: forwards TCP connections to a target, keeps every byte, and may change one. Point a peer's address at it. Thread-safe.
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

  /// All that went that way so far, of all connections.
  std::vector<std::byte> recorded(Way way) const;

  std::size_t passed(Way way) const;  ///< how many bytes that is

  /// Changes one bit of the byte that comes `after` so many more, that way.
  void flip(Way way, std::uint64_t after);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace atl::test
