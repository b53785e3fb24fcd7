// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// The bytes that go to a Redis server and come from it (RESP2). Where hiredis is absent, both raise Error(kUnavailable).
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

/// What a server must be sent for this command, whose arguments may hold any bytes.
std::string format_command(std::span<const std::string> arguments);

/// Makes replies of a server's bytes. A reply above the limits is Error(kProtocol) before memory for it is taken; after
/// an error the reader is of no use.
class ReplyReader {
 public:
  ReplyReader();
  ~ReplyReader();
  ReplyReader(const ReplyReader&) = delete;
  ReplyReader& operator=(const ReplyReader&) = delete;

  void feed(std::span<const std::byte> bytes);
  /// The next reply once all of it has come. Error(kProtocol) for bytes that are none.
  std::optional<Reply> next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl::redis
