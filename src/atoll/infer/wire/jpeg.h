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

/// The file; none where it takes more than `most_bytes`. Sides are 1 to kMaxJpegSide, and `pixels` are exactly those.
std::optional<std::vector<std::byte>> encode_jpeg(const JpegSize& size, std::span<const std::uint8_t> pixels,
                                                  std::size_t most_bytes);

/// Fills `pixels`, which are exactly those of `size`. Error(kProtocol) for a file of another size or kind than encode_jpeg
/// makes, for one that is damaged, and for bytes behind its end. Size and kind are looked at before pixels are: what a
/// file says never decides how much memory is taken.
void decode_jpeg(const JpegSize& size, std::span<const std::byte> jpeg, std::span<std::uint8_t> pixels);

}  // namespace atl::infer::wire
