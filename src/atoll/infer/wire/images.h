// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/infer/graph.h"

// kJpeg: a tensor that is a picture, as a JPEG file; several pictures lie one below the other. uint8 elements are used
// as pixels directly. For float32 and float64 each message has a lowest value and a step, both float32, before the
// file: a pixel is the number of steps above the lowest value, from 0 to 255, so that the pixels cover the message's
// own range.
namespace atl::infer::wire {

/// The layout of pictures' pixels in a tensor.
struct ImageLayout {
  std::size_t images = 1;
  std::size_t channels = 1;
  std::size_t height = 0;  ///< of one image
  std::size_t width = 0;
  bool is_planar = true;  ///< each channel by itself; otherwise the channels of each pixel are adjacent
  bool operator==(const ImageLayout&) const = default;
};

/// The layout of a tensor that kJpeg can pack: uint8, float32 or float64 of shape (channels, rows, columns) or (rows,
/// columns, channels), optionally with a leading dimension of pictures, with 1 or 3 channels and no more rows in total
/// and no more columns than JPEG allows. If both shapes are possible, the first counts. None for other tensors.
std::optional<ImageLayout> image_layout(const Tensor& type);

/// The same for people, in error messages.
inline constexpr const char* kImages =
    "uint8, float32 or float64 of shape (.., C, rows, columns) or (.., rows, columns, C) with C = 1 or 3";

/// None for tensors that are not images, NaN, infinities, a range for which float32 has no step, and if the result
/// would not be shorter.
std::optional<std::vector<std::byte>> pack_jpeg(const Tensor& type, std::span<const std::byte> bytes);
/// Throws Error(kProtocol) for anything that pack_jpeg cannot have made.
void unpack_jpeg(const Tensor& type, std::span<const std::byte> packed, std::span<std::byte> out);

}  // namespace atl::infer::wire
