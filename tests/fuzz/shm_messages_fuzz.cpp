// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "atoll/core/error.h"
#include "atoll/transport/shm/wire.h"

// Bytes that a peer may send on the stream of a shared-memory link. The first byte chooses how the rest is cut into
// pieces.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace atl::transport::shm;
  if (size == 0) return 0;
  const std::size_t piece = 1 + data[0];
  std::span<const std::uint8_t> rest(data + 1, size - 1);
  MessageParser parser;
  try {
    while (!rest.empty()) {
      const std::span<std::byte> space = parser.space();
      const std::size_t taken = std::min({piece, space.size(), rest.size()});
      if (taken == 0) std::abort();
      std::memcpy(space.data(), rest.data(), taken);
      parser.add(taken);
      rest = rest.subspan(taken);
      while (const auto message = parser.next()) {
        if (message->body.size() > atl::transport::kMaxControlBytes) std::abort();
        if (message->type == MessageType::kHello) static_cast<void>(decode<Hello>(*message));
        if (message->type == MessageType::kOpen) static_cast<void>(decode<Open>(*message));
        if (message->type == MessageType::kSlab) static_cast<void>(decode<Slab>(*message));
      }
    }
  } catch (const atl::Error& error) {
    if (error.kind() != atl::ErrorKind::kProtocol) std::abort();
  }
  return 0;
}
