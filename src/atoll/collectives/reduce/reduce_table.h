// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "atoll/collectives/reduce/blocks_table.h"
#include "atoll/collectives/reduce/reduce_formats.h"
#include "atoll/collectives/reduce/reduce_kernels.h"
#include "atoll/collectives/reduce/reduce_steps.h"
#include "atoll/collectives/reduce/reduce_vector.h"

// The folding loops, and the table of all kernels for the instruction set that the including source is compiled for.
//
// One pass: a few vectors at a time go through all sources and stay in registers until they are stored, so each source
// is read once and the result written once. A source may be the destination, because a position is read from every
// source before it is written.
namespace atl::collectives {
namespace {

/// Folds kBlock consecutive vectors of memory that start at byte `at`.
template <class Format, class Op, int kBlock, class Sources>
[[gnu::always_inline]] inline void fold_block(const Sources& sources, std::size_t source_count, std::byte* destination,
                                              std::size_t at, const Scalars<typename Format::Lane>& scalars) {
  Pack<typename Format::Lanes, Format::kVectors> folded[kBlock];
#pragma GCC unroll 4
  for (int b = 0; b < kBlock; ++b) {
    folded[b] = Format::load(sources[0] + at + b * kVectorBytes);
#pragma GCC unroll 4
    for (auto& vector : folded[b].vectors) vector = Op::first(vector, scalars);
  }
  for (std::size_t source = 1; source < source_count; ++source) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlock; ++b) {
      const auto more = Format::load(sources[source] + at + b * kVectorBytes);
#pragma GCC unroll 4
      for (int k = 0; k < Format::kVectors; ++k) {
        folded[b].vectors[k] = Op::next(folded[b].vectors[k], more.vectors[k], scalars);
      }
    }
  }
#pragma GCC unroll 4
  for (int b = 0; b < kBlock; ++b) {
#pragma GCC unroll 4
    for (auto& vector : folded[b].vectors) vector = Op::last(vector, scalars);
    Format::store(destination + at + b * kVectorBytes, folded[b]);
  }
}

/// Folds the last `bytes` < kVectorBytes bytes, padded with zeros.
template <class Format, class Op>
[[gnu::always_inline]] inline void fold_rest(const std::byte* const* sources, std::size_t source_count,
                                             std::byte* destination, std::size_t at, std::size_t bytes,
                                             const Scalars<typename Format::Lane>& scalars) {
  alignas(kVectorBytes) std::byte padded[kVectorBytes] = {};
  copy_short(padded, sources[0] + at, bytes);
  auto folded = Format::load(padded);
  for (auto& vector : folded.vectors) vector = Op::first(vector, scalars);
  for (std::size_t source = 1; source < source_count; ++source) {
    copy_short(padded, sources[source] + at, bytes);
    const auto more = Format::load(padded);
    for (int k = 0; k < Format::kVectors; ++k) {
      folded.vectors[k] = Op::next(folded.vectors[k], more.vectors[k], scalars);
    }
  }
  for (auto& vector : folded.vectors) vector = Op::last(vector, scalars);
  Format::store(padded, folded);
  copy_short(destination + at, padded, bytes);
}

/// The whole blocks; returns where they end. kSources: their number, or 0 when only known at run time.
template <class Format, class Op, std::size_t kSources>
[[gnu::always_inline]] inline std::size_t fold_blocks(const std::byte* const* sources, std::size_t source_count,
                                                      std::byte* destination, std::size_t bytes,
                                                      const Scalars<typename Format::Lane>& scalars) {
  constexpr int kBlock = 4 / Format::kVectors;
  std::size_t at = 0;
  if constexpr (kSources == 0) {
    for (; at + kBlock * kVectorBytes <= bytes; at += kBlock * kVectorBytes) {
      fold_block<Format, Op, kBlock>(sources, source_count, destination, at, scalars);
    }
  } else {
    // The stores might otherwise overwrite the array of addresses, for all the compiler knows.
    const std::byte* fixed[kSources];
    for (std::size_t source = 0; source < kSources; ++source) fixed[source] = sources[source];
    for (; at + kBlock * kVectorBytes <= bytes; at += kBlock * kVectorBytes) {
      fold_block<Format, Op, kBlock>(fixed, kSources, destination, at, scalars);
    }
  }
  return at;
}

template <class Format, class Op, bool kManySpecial = false>
void fold_array(const std::byte* const* sources, std::size_t source_count, std::byte* destination, std::size_t bytes,
                const detail::Parameters& parameters) {
  const Scalars<typename Format::Lane> scalars(parameters);
  std::size_t at = 0;
  if (source_count == 2) {
    at = fold_blocks<Format, Op, 2>(sources, source_count, destination, bytes, scalars);
  } else if (kManySpecial && source_count == 3) {
    at = fold_blocks < Format, Op, kManySpecial ? 3 : 0 > (sources, source_count, destination, bytes, scalars);
  } else if (kManySpecial && source_count == 4) {
    at = fold_blocks < Format, Op, kManySpecial ? 4 : 0 > (sources, source_count, destination, bytes, scalars);
  } else {
    at = fold_blocks<Format, Op, 0>(sources, source_count, destination, bytes, scalars);
  }
  for (; at + kVectorBytes <= bytes; at += kVectorBytes) {
    fold_block<Format, Op, 1>(sources, source_count, destination, at, scalars);
  }
  if (at < bytes) fold_rest<Format, Op>(sources, source_count, destination, at, bytes - at, scalars);
}

using Row = detail::Kernel[kReduceOpCount];

constexpr detail::Kernel& entry(Row& row, ReduceOp op) { return row[static_cast<int>(op)]; }

template <class Format>
constexpr void fill_ordered(Row& row) {
  entry(row, ReduceOp::kMin) = fold_array<Format, Minimum>;
  entry(row, ReduceOp::kMax) = fold_array<Format, Maximum>;
}

template <class Format, class Multiplication>
constexpr void fill_arithmetic(Row& row) {
  entry(row, ReduceOp::kSum) = fold_array<Format, Sum, true>;
  entry(row, ReduceOp::kProduct) = fold_array<Format, Multiplication>;
  entry(row, ReduceOp::kPremulSum) = fold_array<Format, PremultipliedSum>;
}

template <class Format, class Multiplication = Product>
constexpr void fill_float(Row& row) {
  fill_arithmetic<Format, Multiplication>(row);
  entry(row, ReduceOp::kAvg) = fold_array<Format, FloatAverage, true>;
}

template <class Format>
constexpr void fill_bits(Row& row) {
  entry(row, ReduceOp::kBand) = fold_array<Format, And>;
  entry(row, ReduceOp::kBor) = fold_array<Format, Or>;
  entry(row, ReduceOp::kBxor) = fold_array<Format, Xor>;
}

template <class Integer, class Unsigned>
constexpr void fill_integer(Row& row) {
  fill_arithmetic<Native<Unsigned>, Product>(row);
  entry(row, ReduceOp::kAvg) = fold_array<Native<Unsigned>, IntegerAverage<Integer>>;
  fill_ordered<Native<Integer>>(row);
  fill_bits<Native<std::uint8_t>>(row);
}

constexpr detail::Kernels make_kernels() {
  detail::Kernels kernels{.blocks = blocks::make_block_kernels()};
  const auto row = [&kernels](DataType dtype) -> Row& { return kernels.folds[static_cast<int>(dtype)]; };

  fill_float<Native<double>>(row(DataType::kFloat64));
  fill_float<Native<float>>(row(DataType::kFloat32));
  fill_float<Float16>(row(DataType::kFloat16));
  fill_float<BFloat16>(row(DataType::kBFloat16));
  fill_float<Float8E4M3>(row(DataType::kFloat8E4M3));
  fill_float<Float8E5M2>(row(DataType::kFloat8E5M2));
  fill_ordered<Native<double>>(row(DataType::kFloat64));
  fill_ordered<Native<float>>(row(DataType::kFloat32));
  fill_ordered<Float16>(row(DataType::kFloat16));
  fill_ordered<BFloat16>(row(DataType::kBFloat16));
  fill_ordered<Float8E4M3>(row(DataType::kFloat8E4M3));
  fill_ordered<Float8E5M2>(row(DataType::kFloat8E5M2));

  fill_integer<std::int8_t, std::uint8_t>(row(DataType::kInt8));
  fill_integer<std::int16_t, std::uint16_t>(row(DataType::kInt16));
  fill_integer<std::int32_t, std::uint32_t>(row(DataType::kInt32));
  fill_integer<std::int64_t, std::uint64_t>(row(DataType::kInt64));
  fill_integer<std::uint8_t, std::uint8_t>(row(DataType::kUInt8));

  Row& boolean = row(DataType::kBool);
  fill_bits<Boolean>(boolean);
  entry(boolean, ReduceOp::kSum) = entry(boolean, ReduceOp::kMax) = entry(boolean, ReduceOp::kBor);
  entry(boolean, ReduceOp::kProduct) = entry(boolean, ReduceOp::kMin) = entry(boolean, ReduceOp::kBand);

  fill_float<Native<float>, ComplexProduct>(row(DataType::kComplex64));
  fill_float<Native<double>, ComplexProduct>(row(DataType::kComplex128));
  return kernels;
}

}  // namespace
}  // namespace atl::collectives
