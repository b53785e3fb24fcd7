// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/wire/images.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "atoll/core/error.h"
#include "atoll/infer/wire/elements.h"
#include "atoll/infer/wire/jpeg.h"

namespace atl::infer::wire {
namespace {

using Bytes = std::span<const std::byte>;
using MaybePacked = std::optional<std::vector<std::byte>>;

constexpr double kMaxPixel = 255;

[[noreturn]] void bad_jpeg(const std::string& what) {
  throw Error(ErrorKind::kProtocol, "a message packed as jpeg: " + what);
}

bool is_channels(std::int64_t size) { return size == 1 || size == 3; }

JpegSize size_of(const ImageLayout& layout) { return {layout.width, layout.images * layout.height, layout.channels}; }

// Calls `visit(place of the byte in the picture, place of the element in the tensor)` for each element.
template <class Visit>
void for_places(const ImageLayout& layout, const Visit& visit) {
  const std::size_t channels = layout.is_planar ? layout.channels : 1;
  const std::size_t pixels = layout.height * layout.width * (layout.is_planar ? 1 : layout.channels);
  for (std::size_t image = 0; image < layout.images; ++image) {
    for (std::size_t channel = 0; channel < channels; ++channel) {
      const std::size_t begin = (image * channels + channel) * pixels;
      for (std::size_t pixel = 0; pixel < pixels; ++pixel) {
        visit((image * pixels + pixel) * channels + channel, begin + pixel);
      }
    }
  }
}

// The values of pixels: `low` plus the pixel's number of steps.
struct Scale {
  float low = 0;
  float step = 0;

  std::uint8_t pixel_of(double value) const {
    if (step == 0) return 0;
    const double steps = (value - static_cast<double>(low)) / static_cast<double>(step);
    return static_cast<std::uint8_t>(std::lround(std::clamp(steps, 0.0, kMaxPixel)));
  }
  double value_of(std::size_t pixel) const {
    return static_cast<double>(low) + static_cast<double>(step) * static_cast<double>(pixel);
  }
  bool is_good() const { return std::isfinite(low) && step >= 0 && std::isfinite(static_cast<float>(value_of(255))); }
};
constexpr std::size_t kHeadBytes = 2 * sizeof(float);

template <class F>
std::optional<Scale> scale_of(Bytes bytes) {
  F low = std::numeric_limits<F>::max();
  F high = std::numeric_limits<F>::lowest();
  bool is_finite = true;
  for (std::size_t i = 0; i < bytes.size() / sizeof(F); ++i) {
    const F value = element<F>(bytes, i);
    is_finite = is_finite && std::fabs(value) <= std::numeric_limits<F>::max();
    low = std::min(low, value);
    high = std::max(high, value);
  }
  constexpr auto kMax = static_cast<double>(std::numeric_limits<float>::max());
  if (!is_finite || std::fabs(static_cast<double>(low)) > kMax || std::fabs(static_cast<double>(high)) > kMax) {
    return std::nullopt;
  }
  Scale scale;
  scale.low = static_cast<float>(low);
  const double range = static_cast<double>(high) - static_cast<double>(scale.low);
  scale.step = static_cast<float>(std::max(0.0, range) / kMaxPixel);
  const bool has_step = scale.step == 0 ? low == high : scale.step >= std::numeric_limits<float>::min();
  if (!has_step || !scale.is_good()) return std::nullopt;
  return scale;
}

template <class T>
MaybePacked packed_as(const ImageLayout& layout, Bytes bytes) {
  constexpr bool kIsFloat = std::is_floating_point_v<T>;
  constexpr std::size_t kHead = kIsFloat ? kHeadBytes : 0;
  std::vector<std::uint8_t> pixels(bytes.size() / sizeof(T));
  Scale scale;
  if constexpr (kIsFloat) {
    const std::optional<Scale> found = scale_of<T>(bytes);
    if (!found) return std::nullopt;
    scale = *found;
    for_places(layout, [&](std::size_t pixel, std::size_t place) {
      pixels[pixel] = scale.pixel_of(static_cast<double>(element<T>(bytes, place)));
    });
  } else {
    for_places(layout, [&](std::size_t pixel, std::size_t place) { pixels[pixel] = element<T>(bytes, place); });
  }
  if (bytes.size() <= kHead + 1) return std::nullopt;
  MaybePacked jpeg = encode_jpeg(size_of(layout), pixels, bytes.size() - kHead - 1);
  if (!jpeg || kHead == 0) return jpeg;
  std::vector<std::byte> packed(kHead + jpeg->size());
  set_element(std::span(packed), 0, scale.low);
  set_element(std::span(packed), 1, scale.step);
  std::memcpy(packed.data() + kHead, jpeg->data(), jpeg->size());
  return packed;
}

template <class T>
void from_jpeg(const ImageLayout& layout, Bytes packed, std::span<std::byte> out) {
  std::array<T, 256> values{};
  if constexpr (std::is_floating_point_v<T>) {
    if (packed.size() < kHeadBytes) bad_jpeg("it has " + std::to_string(packed.size()) + " bytes");
    const Scale scale{element<float>(packed, 0), element<float>(packed, 1)};
    if (!scale.is_good()) {
      bad_jpeg("values from " + std::to_string(scale.low) + " in steps of " + std::to_string(scale.step));
    }
    for (std::size_t pixel = 0; pixel < values.size(); ++pixel) values[pixel] = static_cast<T>(scale.value_of(pixel));
    packed = packed.subspan(kHeadBytes);
  } else {
    for (std::size_t pixel = 0; pixel < values.size(); ++pixel) values[pixel] = static_cast<T>(pixel);
  }
  std::vector<std::uint8_t> pixels(out.size() / sizeof(T));
  decode_jpeg(size_of(layout), packed, pixels);
  for_places(layout, [&](std::size_t pixel, std::size_t place) { set_element(out, place, values[pixels[pixel]]); });
}

}  // namespace

std::optional<ImageLayout> image_layout(const Tensor& type) {
  const bool is_dtype = type.dtype == Dtype::kUint8 || type.dtype == Dtype::kFloat32 || type.dtype == Dtype::kFloat64;
  const std::size_t dims = type.shape.size();
  if (!is_dtype || dims < 3 || dims > 4) return std::nullopt;
  const std::size_t first = dims - 3;
  const auto size = [&](std::size_t place) { return type.shape[first + place]; };
  ImageLayout layout;
  layout.is_planar = is_channels(size(0));
  if (!layout.is_planar && !is_channels(size(2))) return std::nullopt;
  const std::size_t rows = layout.is_planar ? 1 : 0;
  const std::int64_t images = first == 0 ? 1 : type.shape[0];
  constexpr auto kMaxSide = static_cast<std::int64_t>(kMaxJpegSide);
  for (const std::int64_t side : {images, size(rows), size(rows + 1)}) {
    if (side < 1 || side > kMaxSide) return std::nullopt;
  }
  if (images * size(rows) > kMaxSide) return std::nullopt;
  layout.images = static_cast<std::size_t>(images);
  layout.channels = static_cast<std::size_t>(size(layout.is_planar ? 0 : 2));
  layout.height = static_cast<std::size_t>(size(rows));
  layout.width = static_cast<std::size_t>(size(rows + 1));
  return layout;
}

std::optional<std::vector<std::byte>> pack_jpeg(const Tensor& type, std::span<const std::byte> bytes) {
  const std::optional<ImageLayout> layout = image_layout(type);
  if (!layout) return std::nullopt;
  if (type.dtype == Dtype::kUint8) return packed_as<std::uint8_t>(*layout, bytes);
  if (type.dtype == Dtype::kFloat32) return packed_as<float>(*layout, bytes);
  return packed_as<double>(*layout, bytes);
}

void unpack_jpeg(const Tensor& type, std::span<const std::byte> packed, std::span<std::byte> out) {
  const std::optional<ImageLayout> layout = image_layout(type);
  if (!layout) bad_jpeg(to_string(type) + " is not an image");
  if (type.dtype == Dtype::kUint8) return from_jpeg<std::uint8_t>(*layout, packed, out);
  if (type.dtype == Dtype::kFloat32) return from_jpeg<float>(*layout, packed, out);
  return from_jpeg<double>(*layout, packed, out);
}

}  // namespace atl::infer::wire
