// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string>

#include "atoll/core/error.h"
#include "atoll/redis/protocol.h"
#include "atoll/redis/url.h"

namespace atl::fuzz {

inline std::size_t elements_of(const redis::Reply& reply, int depth) {
  if (depth > redis::kMaxReplyDepth + 1) std::abort();
  std::size_t count = reply.elements.size();
  for (const auto& element : reply.elements) count += elements_of(element, depth + 1);
  return count;
}

/// Bytes that a Redis server sends. The first byte chooses how the rest is cut. Returns whether all of them were
/// replies.
inline bool redis_replies(std::span<const std::byte> bytes) {
  if (bytes.empty()) return true;
  const std::size_t piece = 1 + std::to_integer<std::size_t>(bytes.front());
  bytes = bytes.subspan(1);
  redis::ReplyReader reader;
  try {
    while (!bytes.empty()) {
      const std::size_t count = std::min(piece, bytes.size());
      reader.feed(bytes.first(count));
      bytes = bytes.subspan(count);
      while (const auto reply = reader.next()) {
        if (elements_of(*reply, 1) > redis::kMaxReplyElements) std::abort();
      }
    }
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kProtocol) std::abort();
    return false;
  }
}

/// A URL as users write it: it is rejected, or names a place. Returns whether it was read.
inline bool redis_url(const std::string& text) {
  try {
    const redis::Url url = redis::parse_url(text);
    if (url.place.host.empty() || url.place.port == 0 || url.database < 0) std::abort();
    const redis::Url again = redis::parse_url(redis::to_string(url));
    if (again.place.host != url.place.host || again.place.port != url.place.port || again.tls != url.tls ||
        again.database != url.database || !again.password.empty()) {
      std::abort();
    }
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalidArgument) std::abort();
    return false;
  }
}

}  // namespace atl::fuzz
