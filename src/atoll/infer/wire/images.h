// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/infer/graph.h"

// kJpeg: a tensor that is a picture, as a JPEG file; several pictures lie one below the other. Bytes are pixels as they are. Of
// float32 and float64 each message has a lowest value and a step, both float32, before the file: pixels are the number of
// steps above it, from 0 to 255, so that the message's own range of values is used up.
namespace atl::infer::wire {

/// How the pixels of pictures lie in a tensor.
struct ImageLayout {
  std::size_t images = 1;
  std::size_t channels = 1;
  std::size_t height = 0;  ///< of one
  std::size_t width = 0;
  bool is_planar = true;  ///< each channel by itself; else the channels of each pixel behind each other
  bool operator==(const ImageLayout&) const = default;
};

/// What kJpeg can pack: uint8, float32 or float64 of the shape (channels, rows, columns) or (rows, columns, channels), with or
/// without a dimension of pictures before, where there are 1 or 3 channels, and no more rows in all and no more columns than
/// JPEG has. Where both are possible the first counts. None for others.
std::optional<ImageLayout> image_layout(const Tensor& type);

/// The same for people, to be told what is not like this.
inline constexpr const char* kImages =
    "uint8, float32 or float64 of shape (.., C, rows, columns) or (.., rows, columns, C) with C = 1 or 3";

/// None for tensors that are no images, NaN, infinities, a range for which float32 has no step, and where it would not become
/// shorter.
std::optional<std::vector<std::byte>> pack_jpeg(const Tensor& type, std::span<const std::byte> bytes);
/// Error(kProtocol) for anything that pack_jpeg cannot have made.
void unpack_jpeg(const Tensor& type, std::span<const std::byte> packed, std::span<std::byte> out);

}  // namespace atl::infer::wire
