// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Formats the commands to a Redis server and parses its replies (RESP2). Builds without hiredis throw
// Error(kUnavailable).
namespace atl::redis {

/// One answer of a server.
struct Reply {
  enum class Kind { kNil, kText, kInteger, kArray, kStatus, kError };
  Kind kind = Kind::kNil;
  std::string text{};  ///< of kText, kStatus and kError
  std::int64_t integer = 0;
  std::vector<Reply> elements{};
};

inline constexpr std::size_t kMaxReplyBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMaxReplyElements = std::size_t{1} << 16;  ///< of one reply, on all levels
inline constexpr int kMaxReplyDepth = 6;

/// Formats a command, whose arguments may hold any bytes, as it is sent to the server.
std::string format_command(std::span<const std::string> arguments);

/// Parses a server's bytes into replies. A reply above the limits is Error(kProtocol) before memory for it is
/// allocated. After an error the reader must not be used again.
class ReplyReader {
 public:
  ReplyReader();
  ~ReplyReader();

  void feed(std::span<const std::byte> bytes);
  /// Returns the next reply once all of it has arrived. Throws Error(kProtocol) for bytes that do not parse.
  std::optional<Reply> next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl::redis
