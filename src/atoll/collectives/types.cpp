// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/types.h"

namespace atl::collectives {
namespace {

constexpr std::array kOperations{"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather",
                                 "scatter",    "all_to_all",     "barrier",    "send",      "receive"};
static_assert(kOperations.size() == static_cast<std::size_t>(Operation::kReceive) + 1);

constexpr std::array kReduceOps{"sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"};
static_assert(kReduceOps.size() == kReduceOpCount);

struct TypeFacts {
  const char* name;
  std::size_t size;
};
constexpr std::array<TypeFacts, kDataTypeCount> kDataTypes{{
    {"float64", 8},
    {"float32", 4},
    {"float16", 2},
    {"bfloat16", 2},
    {"float8_e4m3fn", 1},
    {"float8_e5m2", 1},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"uint8", 1},
    {"bool", 1},
    {"complex64", 8},
    {"complex128", 16},
}};

}  // namespace

const char* to_string(Operation operation) noexcept { return entry_of(kOperations, operation, "unknown"); }
const char* to_string(ReduceOp op) noexcept { return entry_of(kReduceOps, op, "unknown"); }
const char* to_string(DataType dtype) noexcept { return entry_of(kDataTypes, dtype, {"unknown", 0}).name; }
std::size_t size_of(DataType dtype) noexcept { return entry_of(kDataTypes, dtype, {"unknown", 0}).size; }

bool is_supported(ReduceOp op, DataType dtype) noexcept {
  const bool is_complex = dtype == DataType::kComplex64 || dtype == DataType::kComplex128;
  const bool is_float = dtype <= DataType::kFloat8E5M2;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct: return true;
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum: return dtype != DataType::kBool;
    case ReduceOp::kMin:
    case ReduceOp::kMax: return !is_complex;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor: return !is_complex && !is_float;
  }
  return false;
}

}  // namespace atl::collectives
