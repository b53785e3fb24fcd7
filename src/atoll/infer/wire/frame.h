// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
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

/// Encodes the header of this payload, little-endian, with magic and version, and checksums (XXH3) of the header and of
/// the payload; `payload_bytes` need not be set. For senders that write the payload from where it is. Throws
/// Error(kInvalidArgument) for a header that a FrameParser would refuse.
HeaderBytes encode(FrameHeader header, std::span<const std::byte> payload);

/// The bytes of a whole frame, which may be shared by those that send it.
using FrameBytes = std::shared_ptr<const std::vector<std::byte>>;
/// Makes a frame: the header, as encode() does, and a copy of the payload. Throws as encode() does.
FrameBytes make_frame(const FrameHeader& header, std::span<const std::byte> payload);

/// A frame that has arrived, whose checksums match.
struct ReceivedFrame {
  FrameHeader header;
  std::span<const std::byte> bytes;  ///< as they came, the header's first; another receiver accepts them too
  std::span<const std::byte> payload() const { return bytes.subspan(kHeaderBytes); }
};

/// Splits a stream of bytes into frames. Never holds more than one frame, and delivers none before its checksum
/// matches.
class FrameParser {
 public:
  /// `most_control_bytes`: the limit of a control frame, which is lower for a peer that has not been admitted yet.
  explicit FrameParser(std::size_t most_control_bytes = kMaxControlBytes);
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

  std::size_t most_control_bytes_;
  std::vector<std::byte> held_;  // of an incomplete frame
  bool is_broken_ = false;
};

}  // namespace atl::infer::wire
