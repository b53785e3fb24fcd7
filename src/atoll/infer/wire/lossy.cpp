// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/wire/lossy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "atoll/core/error.h"
#include "atoll/infer/wire/elements.h"

namespace atl::infer::wire {
namespace {

constexpr double kMaxHalf = 65504;
constexpr float kSteps = 127;

[[noreturn]] void bad_lossy(const std::string& what) {
  throw Error(ErrorKind::kProtocol, "a message of less exact numbers cannot be unpacked: " + what);
}

void require_floats(Dtype dtype) {
  if (dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64) return;
  bad_lossy(std::string("elements are ") + to_string(dtype) + ", but only float32 and float64 are packed like this");
}

void require_bytes(std::size_t found, std::size_t expected) {
  if (found != expected) bad_lossy("it has " + std::to_string(found) + " bytes instead of " + std::to_string(expected));
}

template <class F>
std::vector<std::byte> half_as(std::span<const std::byte> bytes) {
  const std::size_t elements = bytes.size() / sizeof(F);
  std::vector<std::byte> packed(elements * 2);
  for (std::size_t i = 0; i < elements; ++i) set_element(std::span(packed), i, half_of(element<F>(bytes, i)));
  return packed;
}

// Elements of one channel lie in `outer` runs of `inner`.
struct Channels {
  std::size_t outer = 1;
  std::size_t channels = 1;
  std::size_t inner = 1;
};

Channels channels_of(const Tensor& type) {
  Channels all;
  const std::size_t dims = type.shape.size();
  for (std::size_t dim = 0; dim < dims; ++dim) {
    const auto size = static_cast<std::size_t>(type.shape[dim]);
    std::size_t& part = dims < 3 || dim > 1 ? all.inner : dim == 0 ? all.outer : all.channels;
    part *= size;
  }
  return all;
}

// Calls `visit(channel, first element, elements)` for each run.
template <class Visit>
void for_runs(const Channels& all, const Visit& visit) {
  for (std::size_t outer = 0; outer < all.outer; ++outer) {
    for (std::size_t channel = 0; channel < all.channels; ++channel) {
      visit(channel, (outer * all.channels + channel) * all.inner, all.inner);
    }
  }
}

// The step with which magnitudes up to `most` fit; none if it is not a normal float32.
std::optional<float> step_for(double most) {
  if (most == 0) return 0.0F;
  if (most > static_cast<double>(std::numeric_limits<float>::max())) return std::nullopt;
  auto step = static_cast<float>(most / static_cast<double>(kSteps));
  if (!std::isfinite(step * kSteps)) step = std::nextafter(step, 0.0F);
  if (step < std::numeric_limits<float>::min()) return std::nullopt;
  return step;
}

template <class F>
std::optional<std::vector<std::byte>> int8_as(const Channels& all, std::span<const std::byte> bytes) {
  std::vector<F> most(all.channels, F{0});
  bool finite = true;
  for_runs(all, [&](std::size_t channel, std::size_t first, std::size_t count) {
    F largest = most[channel];
    for (std::size_t i = first; i < first + count; ++i) {
      const F magnitude = std::fabs(element<F>(bytes, i));
      finite = finite && magnitude <= std::numeric_limits<F>::max();
      largest = std::max(largest, magnitude);
    }
    most[channel] = largest;
  });
  if (!finite) return std::nullopt;
  const std::size_t head = all.channels * sizeof(float);
  std::vector<std::byte> packed(head + bytes.size() / sizeof(F));
  std::vector<F> steps(all.channels);
  for (std::size_t channel = 0; channel < all.channels; ++channel) {
    const std::optional<float> step = step_for(static_cast<double>(most[channel]));
    if (!step) return std::nullopt;
    set_element(std::span(packed), channel, *step);
    steps[channel] = *step;
  }
  for_runs(all, [&](std::size_t channel, std::size_t first, std::size_t count) {
    const F step = steps[channel];
    if (step == 0) return;  // zeros
    for (std::size_t i = first; i < first + count; ++i) {
      const F scaled = std::clamp<F>(element<F>(bytes, i) / step, -kSteps, kSteps);
      packed[head + i] = static_cast<std::byte>(static_cast<std::int8_t>(scaled + std::copysign(F{0.5}, scaled)));
    }
  });
  return packed;
}

template <class F>
void from_int8(const Channels& all, std::span<const std::byte> packed, std::span<std::byte> out) {
  const std::span<const std::byte> steps = packed.first(all.channels * sizeof(float));
  const std::span<const std::byte> values = packed.subspan(steps.size());
  for (std::size_t channel = 0; channel < all.channels; ++channel) {
    const auto step = element<float>(steps, channel);
    if (!(step >= 0) || !std::isfinite(step * kSteps)) bad_lossy("the step " + std::to_string(step));
  }
  bool wrong = false;
  for_runs(all, [&](std::size_t channel, std::size_t first, std::size_t count) {
    const F step = element<float>(steps, channel);
    for (std::size_t i = first; i < first + count; ++i) {
      const auto value = static_cast<std::int8_t>(values[i]);
      wrong = wrong || value == std::numeric_limits<std::int8_t>::min();
      set_element<F>(out, i, static_cast<F>(value) * step);
    }
  });
  if (wrong) bad_lossy("-128 steps: -127 to 127 are allowed");
}

}  // namespace

std::uint16_t half_of(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000U) {
    half = 0x7e00U | ((magnitude >> 13) & 0x3ffU);  // NaN, quiet
  } else if (magnitude == 0x7f800000U) {
    half = 0x7c00U;
  } else if (magnitude >= 0x477fe000U) {
    half = 0x7bffU;  // 65504 and everything above
  } else if (magnitude < 0x38800000U) {
    // Below 2^-14 float16 has steps of 2^-24, like the last bit of a float32 near 0.5: so adding 0.5 rounds.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - std::bit_cast<std::uint32_t>(0.5F);
  } else {
    magnitude += 0xfffU + ((magnitude >> 13) & 1U);
    half = (magnitude >> 13) - (112U << 10);
  }
  return static_cast<std::uint16_t>(sign | half);
}

std::uint16_t half_of(double value) noexcept {
  if (std::isfinite(value)) value = std::clamp(value, -kMaxHalf, kMaxHalf);
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return half_of(nearest);
  // Rounding twice can go wrong at a tie. So the first rounding truncates, and sets the last bit if anything was cut
  // off.
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
  return half_of(std::bit_cast<float>(bits | 1U));
}

float float_of_half(std::uint16_t half) noexcept {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 31U;
  const std::uint32_t fraction = half & 0x3ffU;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | (fraction << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

std::optional<std::vector<std::byte>> pack_half(Dtype dtype, std::span<const std::byte> bytes) {
  if (dtype == Dtype::kFloat32) return half_as<float>(bytes);
  if (dtype == Dtype::kFloat64) return half_as<double>(bytes);
  return std::nullopt;
}

void unpack_half(Dtype dtype, std::span<const std::byte> packed, std::span<std::byte> out) {
  require_floats(dtype);
  const std::size_t elements = out.size() / static_cast<std::size_t>(bytes_of(dtype));
  require_bytes(packed.size(), elements * 2);
  for (std::size_t i = 0; i < elements; ++i) {
    const float value = float_of_half(element<std::uint16_t>(packed, i));
    if (dtype == Dtype::kFloat32) {
      set_element(out, i, value);
    } else {
      set_element(out, i, static_cast<double>(value));
    }
  }
}

std::optional<std::vector<std::byte>> pack_int8(const Tensor& type, std::span<const std::byte> bytes) {
  if (type.dtype == Dtype::kFloat32) return int8_as<float>(channels_of(type), bytes);
  if (type.dtype == Dtype::kFloat64) return int8_as<double>(channels_of(type), bytes);
  return std::nullopt;
}

void unpack_int8(const Tensor& type, std::span<const std::byte> packed, std::span<std::byte> out) {
  require_floats(type.dtype);
  const Channels all = channels_of(type);
  require_bytes(packed.size(), all.channels * sizeof(float) + static_cast<std::size_t>(type.elements()));
  if (type.dtype == Dtype::kFloat32) {
    from_int8<float>(all, packed, out);
  } else {
    from_int8<double>(all, packed, out);
  }
}

}  // namespace atl::infer::wire
