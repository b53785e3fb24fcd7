// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "atoll/collectives/reduce/reduce_kernels.h"
#include "atoll/collectives/reduce/reduce_vector.h"

// The steps of a fold on lanes: `first` takes the first source, `next` adds one more, `last` finishes. They work on
// vectors of any lane type and have no branches on values, so that every instruction set computes the same bits.
namespace atl::collectives {
namespace {

/// Parameters in the lane's type.
template <class Lane>
struct Scalars {
  explicit Scalars(const detail::Parameters& parameters)
      : factor(static_cast<Lane>(parameters.integer_factor)), divisor(parameters.divisor) {}

  Lane factor;
  std::int64_t divisor;
};

template <class Lane>
struct FloatScalars {
  explicit FloatScalars(const detail::Parameters& parameters)
      : factor(static_cast<Lane>(parameters.factor)),
        divisor(static_cast<Lane>(parameters.divisor)),
        reciprocal(1 / divisor),
        is_reciprocal_exact((parameters.divisor & (parameters.divisor - 1)) == 0) {}

  Lane factor;
  Lane divisor;
  Lane reciprocal;
  bool is_reciprocal_exact;
};
template <>
struct Scalars<float> : FloatScalars<float> {
  using FloatScalars::FloatScalars;
};
template <>
struct Scalars<double> : FloatScalars<double> {
  using FloatScalars::FloatScalars;
};

struct Step {
  template <class V, class S>
  [[gnu::always_inline]] static V first(V x, const S&) {
    return x;
  }
  template <class V, class S>
  [[gnu::always_inline]] static V last(V folded, const S&) {
    return folded;
  }
};

struct Sum : Step {
  template <class V, class S>
  [[gnu::always_inline]] static V next(V folded, V x, const S&) {
    return folded + x;
  }
};

struct FloatAverage : Sum {
  template <class V, class S>
  [[gnu::always_inline]] static V last(V folded, const S& scalars) {
    // Both are the correctly rounded quotient; the multiplication is several times faster.
    return scalars.is_reciprocal_exact ? folded * scalars.reciprocal : folded / scalars.divisor;
  }
};

/// Sums in unsigned lanes, which wrap around, and divides them as `Signed`, which may be an unsigned type too.
template <class Signed>
struct IntegerAverage : Sum {
  template <class V, class S>
  [[gnu::always_inline]] static V last(V folded, const S& scalars) {
    Signed lanes[sizeof(V) / sizeof(Signed)];
    __builtin_memcpy(lanes, &folded, sizeof(V));
    for (Signed& lane : lanes) lane = quotient(lane, scalars.divisor);
    __builtin_memcpy(&folded, lanes, sizeof(V));
    return folded;
  }

 private:
  [[gnu::always_inline]] static Signed quotient(Signed dividend, std::int64_t divisor) {
    if constexpr (sizeof(Signed) == 8) return dividend / divisor;
    // Exact: a quotient of 32-bit integers that is not whole is farther from the next whole number than a double's
    // rounding.
    return static_cast<Signed>(static_cast<std::int32_t>(static_cast<double>(dividend) / static_cast<double>(divisor)));
  }
};

struct PremultipliedSum : Step {
  template <class V, class S>
  [[gnu::always_inline]] static V first(V x, const S& scalars) {
    return x * scalars.factor;
  }
  template <class V, class S>
  [[gnu::always_inline]] static V next(V folded, V x, const S& scalars) {
    return folded + x * scalars.factor;
  }
};

struct Product : Step {
  template <class V, class S>
  [[gnu::always_inline]] static V next(V folded, V x, const S&) {
    return folded * x;
  }
};

/// Lanes 2k and 2k+1 are a real and an imaginary part: (a+bi)(c+di) = (ac - bd) + (ad + bc)i, as PyTorch computes it.
struct ComplexProduct : Step {
  template <class V, class S>
  [[gnu::always_inline]] static V next(V folded, V x, const S&) {
    constexpr int kLanes = sizeof(V) / sizeof(folded[0]);
    return multiplied(folded, x, std::make_integer_sequence<int, kLanes>());
  }

 private:
  template <class V, int... kLane>
  [[gnu::always_inline]] static V multiplied(V a, V b, std::integer_sequence<int, kLane...>) {
    const V real = __builtin_shufflevector(a, a, (kLane & ~1)...);
    const V imaginary = __builtin_shufflevector(a, a, (kLane | 1)...);
    const V crossed = imaginary * __builtin_shufflevector(b, b, (kLane ^ 1)...);
    constexpr V kSign = {((kLane & 1) != 0 ? 1 : -1)...};
    return real * b + crossed * kSign;
  }
};

template <class V>
inline constexpr bool kIsFloat = std::is_same_v<V, F32> || std::is_same_v<V, Vector<double>>;

/// The first of equal values (so of the zeros) wins; NaN wins over all.
struct Minimum : Step {
  template <class V, class S>
  [[gnu::always_inline]] static V next(V folded, V x, const S&) {
    if constexpr (kIsFloat<V>) return ((x < folded) | (x != x)) ? x : folded;
    return x < folded ? x : folded;
  }
};

struct Maximum : Step {
  template <class V, class S>
  [[gnu::always_inline]] static V next(V folded, V x, const S&) {
    if constexpr (kIsFloat<V>) return ((x > folded) | (x != x)) ? x : folded;
    return x > folded ? x : folded;
  }
};

struct And : Step {
  template <class V, class S>
  [[gnu::always_inline]] static V next(V folded, V x, const S&) {
    return folded & x;
  }
};

struct Or : Step {
  template <class V, class S>
  [[gnu::always_inline]] static V next(V folded, V x, const S&) {
    return folded | x;
  }
};

struct Xor : Step {
  template <class V, class S>
  [[gnu::always_inline]] static V next(V folded, V x, const S&) {
    return folded ^ x;
  }
};

}  // namespace
}  // namespace atl::collectives
