// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/library/reduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "atoll/sim/library/half.h"

namespace atl::sim {
namespace {

constexpr std::size_t kBlock = 512;  // elements that are folded over all sources at a time

template <typename T>
inline constexpr bool kIsSmallFloat = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

// The type in which an element is folded.
template <typename T>
auto wide_type() {
  if constexpr (kIsSmallFloat<T>) {
    return float{};
  } else {
    return T{};
  }
}
template <typename T>
using Wide = decltype(wide_type<T>());

template <ReduceOp op, typename W>
W folded(W a, W b) {
  if constexpr (op == ReduceOp::kSum || op == ReduceOp::kAvg) {
    if constexpr (std::is_same_v<W, bool>) {
      return a || b;
    } else if constexpr (std::is_integral_v<W>) {
      return static_cast<W>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    } else {
      return a + b;
    }
  } else if constexpr (op == ReduceOp::kProduct) {
    if constexpr (std::is_same_v<W, bool>) {
      return a && b;
    } else if constexpr (std::is_integral_v<W>) {
      return static_cast<W>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    } else {
      return a * b;
    }
  } else if constexpr (op == ReduceOp::kMin) {
    return b < a || b != b ? b : a;
  } else {
    return b > a || b != b ? b : a;
  }
}

template <typename W>
W divided(W sum, std::size_t by) {
  if constexpr (std::is_same_v<W, bool>) {
    return sum;
  } else if constexpr (std::is_integral_v<W>) {
    using Widest = std::conditional_t<std::is_signed_v<W>, std::int64_t, std::uint64_t>;
    return static_cast<W>(static_cast<Widest>(sum) / static_cast<Widest>(by));
  } else {
    return sum / static_cast<W>(by);
  }
}

template <ReduceOp op, typename T>
void fold_all(std::span<const std::byte* const> sources, std::byte* output, std::size_t count) {
  std::array<T, kBlock> loaded;
  std::array<Wide<T>, kBlock> folds;
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t part = std::min(kBlock, count - first);
    for (std::size_t source = 0; source < sources.size(); ++source) {
      std::memcpy(loaded.data(), sources[source] + first * sizeof(T), part * sizeof(T));
      if (source == 0) {
        for (std::size_t i = 0; i < part; ++i) folds[i] = static_cast<Wide<T>>(loaded[i]);
      } else {
        for (std::size_t i = 0; i < part; ++i) folds[i] = folded<op>(folds[i], static_cast<Wide<T>>(loaded[i]));
      }
    }
    for (std::size_t i = 0; i < part; ++i) {
      loaded[i] = static_cast<T>(op == ReduceOp::kAvg ? divided(folds[i], sources.size()) : folds[i]);
    }
    std::memcpy(output + first * sizeof(T), loaded.data(), part * sizeof(T));
  }
}

template <typename T>
void fold_by(ReduceOp op, std::span<const std::byte* const> sources, std::byte* output, std::size_t count) {
  switch (op) {
    case ReduceOp::kSum: return fold_all<ReduceOp::kSum, T>(sources, output, count);
    case ReduceOp::kAvg: return fold_all<ReduceOp::kAvg, T>(sources, output, count);
    case ReduceOp::kProduct: return fold_all<ReduceOp::kProduct, T>(sources, output, count);
    case ReduceOp::kMin: return fold_all<ReduceOp::kMin, T>(sources, output, count);
    case ReduceOp::kMax: return fold_all<ReduceOp::kMax, T>(sources, output, count);
  }
}

}  // namespace

bool can_reduce(ReduceOp op, DataType dtype) noexcept {
  if (dtype == DataType::kBool) return op != ReduceOp::kAvg;
  return dtype != DataType::kBytes;
}

void reduce(ReduceOp op, DataType dtype, std::span<const std::byte* const> sources, std::byte* output,
            std::size_t count) noexcept {
  switch (dtype) {
    case DataType::kBool: return fold_by<bool>(op, sources, output, count);
    case DataType::kUInt8: return fold_by<std::uint8_t>(op, sources, output, count);
    case DataType::kInt8: return fold_by<std::int8_t>(op, sources, output, count);
    case DataType::kInt32: return fold_by<std::int32_t>(op, sources, output, count);
    case DataType::kInt64: return fold_by<std::int64_t>(op, sources, output, count);
    case DataType::kFloat16: return fold_by<Float16>(op, sources, output, count);
    case DataType::kBFloat16: return fold_by<BFloat16>(op, sources, output, count);
    case DataType::kFloat32: return fold_by<float>(op, sources, output, count);
    case DataType::kFloat64: return fold_by<double>(op, sources, output, count);
    case DataType::kBytes: return;
  }
}

}  // namespace atl::sim
