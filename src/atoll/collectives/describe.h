// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "atoll/collectives/types.h"
#include "atoll/transport/frame.h"

namespace atl::collectives {

/// What frames of the groups carry; the value of FrameHeader::kind.
enum class FrameKind : std::uint8_t {
  kCollective = 1,  ///< a chunk of a collective
  kMessage,         ///< a whole small message, sent unasked (eager)
  kAnnounce,        ///< a large message wants to come (rendezvous)
  kGrant,           ///< the receiver has posted a buffer for it
  kPayload,         ///< a part of a granted message
  kConsumed,        ///< eager bytes were taken by a receive: credit returns
  kAnnounceDirect,  ///< a large message wants to come from device to device; its grant is kGrant
  kLanded,          ///< it has come
  kWithdrawn,       ///< a message whose sender refused the call; the payload says why
  kTurnedDown,      ///< an announced message whose receiver refused the call; the payload says why
};

/// One operation of the program may be carried out as several collectives: the pieces of a large tensor, the tensors of a list. A
/// sequence is the operation's number in the group and the collective's place in the operation, in that order of weight.
inline constexpr int kPartBits = 20;
inline constexpr std::uint32_t kMaxParts = std::uint32_t{1} << kPartBits;
constexpr std::uint64_t sequence_of(std::uint64_t number, std::uint32_t part) noexcept {
  return (number << kPartBits) | part;
}
constexpr std::uint64_t number_of(std::uint64_t sequence) noexcept { return sequence >> kPartBits; }
constexpr std::uint32_t part_of(std::uint64_t sequence) noexcept {
  return static_cast<std::uint32_t>(sequence & (kMaxParts - 1));
}

/// What an operation looks like on one rank, as frame headers carry it.
struct Signature {
  Operation operation = Operation::kAllReduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;
  std::int32_t root = -1;
  std::uint64_t sequence = 0;  ///< see sequence_of()
  std::uint32_t attempt = 0;
};

bool has_reduction(Operation operation) noexcept;

/// "all_reduce #5"; of a later part of the operation "all_reduce #5.2".
std::string numbered(Operation operation, std::uint64_t sequence);

/// "all_reduce #5 (sum, float32, 100 elements)", "broadcast #5 (int64, 3 elements, root 1)".
std::string describe(const Signature& signature, std::uint64_t count);
std::string describe(const transport::FrameHeader& header);

/// The sentence for ranks that called different things.
std::string describe_leftover(const std::string& theirs, int their_rank, int my_rank);
std::string describe_mismatch(const std::string& mine, int my_rank, const std::string& theirs, int their_rank);

}  // namespace atl::collectives
