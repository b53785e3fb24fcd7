// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "atoll/infer/wire/jpeg.h"

namespace atl::infer::test {

/// Pixels of slopes, another one for each colour and for each `turn`: far from flat, and smooth enough for JPEG to do
/// well.
inline std::vector<std::uint8_t> picture(const wire::JpegSize& size, std::size_t turn = 0) {
  std::vector<std::uint8_t> pixels;
  for (std::size_t y = 0; y < size.height; ++y) {
    for (std::size_t x = 0; x < size.width; ++x) {
      for (std::size_t c = 0; c < size.channels; ++c) {
        const std::size_t across = (turn % 2 == 0 ? x : size.width - 1 - x) * 150 / size.width;
        pixels.push_back(static_cast<std::uint8_t>(10 * c + across + y * 80 / size.height));
      }
    }
  }
  return pixels;
}

struct Errors {
  double most = 0;
  double mean = 0;
};
template <class T>
Errors errors_between(const std::vector<T>& a, const std::vector<T>& b) {
  Errors errors;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    errors.most = std::max(errors.most, error);
    errors.mean += error / static_cast<double>(a.size());
  }
  return errors;
}

}  // namespace atl::infer::test
