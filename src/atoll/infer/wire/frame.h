// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "atoll/core/region.h"

// The protocol between a robot, a server and the server's worker processes: a stream of frames, each a header of fixed
// size and a payload. Control frames hold a FlatBuffers message (messages.h); the others hold raw bytes of weights and
// tensors.
namespace atl::infer::wire {

inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kHeaderBytes = 56;
inline constexpr std::size_t kMaxControlBytes = std::size_t{32} << 20;    ///< sized for a graph
inline constexpr std::size_t kMaxDataBytes = std::size_t{1} << 18;        ///< of one frame; messages have many
inline constexpr std::uint64_t kMaxWeightBytes = std::uint64_t{1} << 40;  ///< of a model's weight file

enum class FrameKind : std::uint8_t {
  kControl = 1,  ///< a message of messages.h
  kWeights = 2,  ///< bytes of a model's weight file at `offset`; `id` is the model
  kTensor = 3,   ///< bytes of rows of a tensor; `id` is the inference
  kProbe = 4,    ///< meaningless bytes that measure the link; `id` is a token
  kLent = 5,     ///< the same as kTensor, but the payload says where the bytes lie in memory that both ends map
};

/// The codec by which one message of rows is packed (codecs.h), the same in every frame of a message.
enum class Codec : std::uint8_t { kRaw = 0, kBits = 1, kZstd = 2, kBitsZstd = 3, kHalf = 4, kInt8 = 5, kJpeg = 6 };

/// The header of a frame. Fields that its kind does not use are 0.
struct FrameHeader {
  FrameKind kind = FrameKind::kControl;
  Codec codec = Codec::kRaw;
  std::uint64_t id = 0;
  std::int32_t tensor = 0;
  std::int32_t rows_begin = 0;
  std::int32_t rows_end = 0;
  std::uint32_t message_bytes = 0;  ///< of the whole packed message
  std::uint64_t offset = 0;         ///< of this payload in the message, or in the weight file
  std::uint32_t payload_bytes = 0;
  bool operator==(const FrameHeader&) const = default;
};

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

/// Where the bytes of a kLent frame lie (link/payload_ring.h).
struct LentPayload {
  std::uint64_t position = 0;  ///< counts all bytes ever put into the memory
  std::uint32_t bytes = 0;
  bool operator==(const LentPayload&) const = default;
};

/// Encodes the header of this payload, little-endian, with magic and version, and checksums (XXH3) of the header and of
/// the payload; `payload_bytes` need not be set. For senders that write the payload from where it is. Throws
/// Error(kInvalidArgument) for a header that a FrameParser would refuse.
HeaderBytes encode(FrameHeader header, std::span<const std::byte> payload);

/// The bytes of a whole frame, which may be shared by those that send it.
using FrameBytes = std::shared_ptr<const std::vector<std::byte>>;
/// Makes a frame: the header, as encode() does, and a copy of the payload. Throws as encode() does.
FrameBytes make_frame(const FrameHeader& header, std::span<const std::byte> payload);
/// Makes the kLent frame for a kTensor frame's header. Throws as encode() does.
FrameBytes make_frame(FrameHeader header, const LentPayload& lent);

/// A frame that has arrived, whose checksums match.
struct ReceivedFrame {
  FrameHeader header;
  std::span<const std::byte> payload;
  /// As they came, the header's first; another receiver accepts them too. Empty if the payload was assembled elsewhere.
  std::span<const std::byte> bytes;
};

/// Reads the payload of a kLent frame. Throws Error(kProtocol) for bytes that do not fit in its message.
LentPayload lent_by(const ReceivedFrame& frame);

/// Splits a stream of bytes into frames. Never holds more than one frame, and delivers none before its checksum
/// matches.
class FrameParser {
 public:
  /// `most_control_bytes`: the limit of a control frame, which is lower for a peer that has not been admitted yet.
  explicit FrameParser(std::size_t most_control_bytes = kMaxControlBytes) : most_control_bytes_(most_control_bytes) {}
  /// Memory for the payload of a frame that arrives in pieces, and what keeps it; empty: the parser's own.
  struct Place {
    std::span<std::byte> bytes;
    std::shared_ptr<const void> owner;
  };
  using FindPlace = std::function<Place(const FrameHeader& header)>;
  /// Assembles payloads where `find` says, which is called once the header of such a frame is complete and valid.
  void assemble_in(FindPlace find) { find_place_ = std::move(find); }
  /// Applies from the next frame on; may be called in `on_frame`.
  void set_most_control_bytes(std::size_t bytes) noexcept { most_control_bytes_ = bytes; }

  using OnFrame = std::function<void(const ReceivedFrame& frame)>;
  /// Calls `on_frame` for every frame that `bytes` completes, in order. Its bytes are valid during the call, in which
  /// the parser must not be destroyed. A frame that arrives whole is not copied. Throws Error(kMismatch) for another
  /// version, Error(kProtocol) for any other fault (magic, kind, codec, sizes, checksums, non-zero fields that the kind
  /// does not use), and what `on_frame` throws; every later call throws Error(kProtocol).
  void push(std::span<const std::byte> bytes, const OnFrame& on_frame);

  /// Returns whether a frame has started but is not complete; a stream that ends there was truncated.
  bool is_inside_frame() const noexcept { return !held_.empty(); }

 private:
  std::size_t hold(std::span<const std::byte> bytes, std::size_t up_to);
  std::size_t place(std::span<const std::byte> bytes);

  std::size_t most_control_bytes_;
  std::vector<std::byte> held_;  // of an incomplete frame
  FindPlace find_place_;
  std::optional<Place> place_;  // of the incomplete frame's payload, once its header is complete
  std::size_t placed_ = 0;      // bytes that are there
  bool is_broken_ = false;
};

}  // namespace atl::infer::wire
