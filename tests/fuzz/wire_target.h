// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/infer/link/payload_ring.h"
#include "atoll/infer/wire/codecs.h"
#include "atoll/infer/wire/frame.h"
#include "atoll/infer/wire/messages.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

// Bytes from the other end of a split inference, for libFuzzer and for tests with mutated bytes: a target aborts if a
// promise is broken.
namespace atl::fuzz {

/// Returns whether `action` ended without an error; it may throw only errors that blame the peer.
template <class Action>
bool is_good(const Action& action) {
  try {
    action();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kProtocol && error.kind() != ErrorKind::kMismatch) std::abort();
    return false;
  }
}

inline std::uint64_t checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

/// Returns the stream with correct checksums in its frames, as far as it has any: other faults are looked at only then.
inline std::vector<std::byte> with_checksums(std::span<const std::byte> bytes) {
  std::vector<std::byte> stream(bytes.begin(), bytes.end());
  const auto set = [&](std::size_t at, std::uint64_t value, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) stream[at + i] = static_cast<std::byte>(value >> (8 * i));
  };
  std::size_t at = 0;
  while (stream.size() - at >= infer::wire::kHeaderBytes) {
    std::size_t payload_bytes = 0;
    for (std::size_t i = 4; i-- > 0;)
      payload_bytes = payload_bytes << 8 | std::to_integer<std::size_t>(stream[at + 48 + i]);
    const std::size_t left = stream.size() - at - infer::wire::kHeaderBytes;
    const std::size_t next = at + infer::wire::kHeaderBytes + std::min(payload_bytes, left);
    set(at + 40, checksum(std::span(stream).subspan(at + infer::wire::kHeaderBytes, std::min(payload_bytes, left))), 8);
    set(at + 52, checksum(std::span(stream).subspan(at, 52)), 4);
    at = next;
  }
  return stream;
}

/// The first byte chooses how the rest is cut, and whether checksums are corrected. The result is the same however the
/// input is cut, and encodes to the same bytes.
inline void wire_frames(std::span<const std::byte> bytes) {
  using namespace infer::wire;
  if (bytes.empty()) return;
  const auto choice = std::to_integer<std::size_t>(bytes.front());
  const std::size_t piece = 1 + (choice >> 1);
  bytes = bytes.subspan(1);
  const std::vector<std::byte> fitting = with_checksums(bytes);
  if ((choice & 1U) != 0) bytes = fitting;
  std::vector<std::byte> again;
  const auto on_frame = [&](const ReceivedFrame& frame) {
    if (frame.payload.size() != frame.header.payload_bytes) std::abort();
    const FrameBytes made = make_frame(frame.header, frame.payload);
    if (!std::equal(made->begin(), made->end(), frame.bytes.begin(), frame.bytes.end())) std::abort();
    again.insert(again.end(), made->begin(), made->end());
    if (frame.header.kind != FrameKind::kLent) return;
    static const infer::PayloadWriter memory;
    static const infer::PayloadReader reader(memory.memory());
    is_good([&] {
      const auto payload = reader.at(lent_by(frame));
      if (checksum(payload) == 1) std::abort();  // reads all of it
    });
  };
  constexpr std::size_t kMaxWireControl = 4096;
  FrameParser parser(kMaxWireControl);
  const bool good = is_good([&] {
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      // Memory of exactly this size, so that a byte too many is found.
      const std::size_t count = std::min(piece, bytes.size() - at);
      const std::vector<std::byte> part(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                                        bytes.begin() + static_cast<std::ptrdiff_t>(at + count));
      parser.push(part, on_frame);
    }
  });
  if (again.size() > bytes.size() || !std::equal(again.begin(), again.end(), bytes.begin())) std::abort();
  if (good && !parser.is_inside_frame() && again.size() != bytes.size()) std::abort();
  const std::size_t frames_bytes = again.size();
  again.clear();
  FrameParser at_once(kMaxWireControl);
  if (is_good([&] { at_once.push(bytes, on_frame); }) != good || again.size() != frames_bytes) std::abort();
}

/// A message is rejected, or encodes to bytes that mean the same.
inline void wire_messages(std::span<const std::byte> bytes) {
  using namespace infer::wire;
  const std::vector<std::byte> exact(bytes.begin(), bytes.end());
  Message message;
  if (!is_good([&] { message = decode(exact); })) return;
  if (decode(encode(message)) != message) std::abort();
}

/// The first bytes choose codec, dtype and shape; the others are a packed message, and the tensor itself.
inline void codecs(std::span<const std::byte> bytes) {
  using namespace infer::wire;
  if (bytes.size() < 5) return;
  const auto choice = [&](std::size_t index) { return std::to_integer<std::int64_t>(bytes[index]); };
  const auto codec = static_cast<Codec>(choice(0) % 8);
  infer::Tensor type{static_cast<infer::Dtype>(choice(1) % 10), {choice(2), choice(3), choice(4) % 8}};
  if (choice(4) >= 128) type.shape = {choice(2), choice(3)};
  if (type.bytes() > 1 << 14) return;
  bytes = bytes.subspan(5);
  std::vector<std::byte> out(static_cast<std::size_t>(type.bytes()));
  const std::vector<std::byte> exact(bytes.begin(), bytes.end());
  if (!is_good([&] { unpack(codec, type, exact, out); })) {
    std::fill(out.begin(), out.end(), std::byte{});
    std::copy_n(bytes.begin(), std::min(bytes.size(), out.size()), out.begin());
  }
  if (codec > Codec::kJpeg) return;
  const Packed packed = pack(codec, type, out);
  if (packed.codec == Codec::kRaw ? !packed.bytes.empty() : packed.bytes.size() >= out.size()) std::abort();
  if (packed.codec == Codec::kRaw) return;
  std::vector<std::byte> again(out.size());
  unpack(packed.codec, type, packed.bytes, again);
  if (is_lossless(packed.codec) && again != out) std::abort();
}

}  // namespace atl::fuzz
