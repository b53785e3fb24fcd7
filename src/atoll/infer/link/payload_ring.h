// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "atoll/core/fd.h"
#include "atoll/infer/wire/frame.h"
#include "atoll/transport/shared_memory.h"

// Payloads of frames between two processes of one host. The frames travel in their stream, in order, and say where in
// this memory their payload lies (wire::FrameKind::kLent); the reader's position comes back in the memory itself. A
// payload that finds no room travels in its frame as always, so nobody waits for the other end.
namespace atl::infer {

inline constexpr std::size_t kPayloadRingBytes = std::size_t{4} << 20;
inline constexpr std::size_t kMinLentBytes = 4'096;  ///< a smaller payload costs less in its frame

/// The writing end. One thread at a time. A reader that writes nonsense into the memory only costs itself its room.
class PayloadWriter {
 public:
  /// Makes the memory. Throws Error(kUnavailable).
  PayloadWriter();
  /// Continues at `head` in memory that another process has made and written until then. Throws Error(kProtocol) if it
  /// is no such memory, Error(kUnavailable).
  PayloadWriter(const Fd& memory, std::uint64_t head);

  /// Copies a payload into the memory; none if it is small, or for lack of room.
  std::optional<wire::LentPayload> put(std::span<const std::byte> payload);

  /// Returns room for a payload that arrives in pieces, for commit(); empty if it is small, or for lack of room. What
  /// was reserved before and not committed is given up.
  std::span<std::byte> reserve(std::size_t bytes);
  /// Ends a reservation whose bytes are complete; `payload` begins where reserve() said.
  wire::LentPayload commit(std::span<const std::byte> payload);
  /// Returns whether this is where the next payload would lie.
  bool is_reserved(std::span<const std::byte> payload) const noexcept { return payload.data() == ring_.at(head_); }

  std::uint64_t head() const noexcept { return head_; }
  /// The memory, for the other end; empty if another process has made it.
  const Fd& memory() const noexcept { return memory_; }

 private:
  bool has_room(std::size_t bytes);

  transport::MappedRing ring_;
  Fd memory_;
  std::uint64_t head_ = 0;
  std::uint64_t known_tail_ = 0;
  bool is_broken_ = false;  // the reader has released what was never written
};

/// The reading end. One thread at a time.
class PayloadReader {
 public:
  /// Throws Error(kProtocol) if `memory` is not what a PayloadWriter makes, Error(kUnavailable).
  explicit PayloadReader(const Fd& memory);

  /// Returns the payload, which the other end may still change. Throws Error(kProtocol) for one that is too large.
  std::span<const std::byte> at(const wire::LentPayload& lent) const;
  /// Releases this payload and all before it.
  void release(const wire::LentPayload& lent) noexcept;

 private:
  transport::MappedRing ring_;
};

/// Both directions, as one end has them.
struct PayloadEnds {
  PayloadReader in;
  PayloadWriter out;
};

}  // namespace atl::infer
