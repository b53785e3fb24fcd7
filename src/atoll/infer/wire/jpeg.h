// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

// Pictures as JPEG, by libjpeg-turbo: baseline, one scan, quality 90, colours at half the resolution. Any thread.
namespace atl::infer::wire {

/// Pixels lie row by row, each as `channels` bytes: 1 is grey; 3 are red, green and blue.
struct JpegSize {
  std::size_t width = 0;
  std::size_t height = 0;
  std::size_t channels = 1;
};
inline constexpr std::size_t kMaxJpegSide = 65'500;

/// Encodes a file; none if it takes more than `most_bytes`. Sides must be 1 to kMaxJpegSide, and `pixels` must have
/// exactly this size.
std::optional<std::vector<std::byte>> encode_jpeg(const JpegSize& size, std::span<const std::uint8_t> pixels,
                                                  std::size_t most_bytes);

/// Decodes into `pixels`, which must have exactly the size `size`. Throws Error(kProtocol) for a file of another size
/// or kind than encode_jpeg makes, for a damaged one, and for bytes after its end. Size and kind are checked before
/// pixels are decoded, so that a file cannot decide how much memory is taken.
void decode_jpeg(const JpegSize& size, std::span<const std::byte> jpeg, std::span<std::uint8_t> pixels);

}  // namespace atl::infer::wire
