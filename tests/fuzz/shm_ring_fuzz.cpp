// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "atoll/core/error.h"
#include "atoll/transport/shared_memory.h"
#include "atoll/transport/shm/ring.h"

namespace {

constexpr std::size_t kSlabBytes = std::size_t{64} << 10;

// The peer has passed one slab of its arena, number 1.
const atl::transport::PeerArena& lender() {
  static const auto& arena = *[] {
    auto* const made = new atl::transport::PeerArena;
    made->add(1, atl::transport::make_sealed_memfd("fuzz", kSlabBytes), kSlabBytes);
    return made;
  }();
  return arena;
}

}  // namespace

// Bytes that a peer may write into the ring that this side reads: 8 bytes of head, then the data from its start. The
// upper half of the head is what it says is revoked.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace atl::transport;
  if (size < 8) return 0;
  RingWriter writer(kMinWindowBytes);
  const atl::Fd memory = writer.take_memory();
  RingReader reader(memory, kMinWindowBytes, &lender());
  const MappedRing view = MappedRing::map(memory, sizeof(RingControl), kMinWindowBytes, MappedRing::Access::kReadWrite);
  std::uint64_t head = 0;
  std::memcpy(&head, data, 8);
  std::memcpy(view.data(), data + 8, std::min(size - 8, kMinWindowBytes));
  reinterpret_cast<RingControl*>(view.control())->head.store(head & 0xffffffff);
  reinterpret_cast<RingControl*>(view.control())->revoked.store(head >> 32);
  unsigned sum = 0;
  try {
    std::size_t frames = 0;
    while (const Frame* const frame = reader.front()) {
      if (reader.is_intact()) {
        for (std::size_t i = 0; i < frame->payload.size(); ++i) sum += static_cast<unsigned>(frame->payload[i]);
        const bool is_here = frame->payload.size() == frame->header.payload_bytes;
        if (!is_here && frame->header.where != Payload::kThere) std::abort();
      }
      if (std::byte* const result = reader.begin_write()) {
        std::fill(result, result + frame->payload.size(), std::byte{1});
        reader.end_write();
      }
      reader.pop();
      if (++frames > kMinWindowBytes / sizeof(FrameHeader)) std::abort();
    }
  } catch (const atl::Error& error) {
    if (error.kind() != atl::ErrorKind::kProtocol) std::abort();
  }
  return sum == ~0U ? 1 : 0;
}
