// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/types.h"

namespace atl::collectives {

const char* to_string(Operation operation) noexcept {
  switch (operation) {
    case Operation::kAllReduce: return "all_reduce";
    case Operation::kReduceScatter: return "reduce_scatter";
    case Operation::kAllGather: return "all_gather";
    case Operation::kBroadcast: return "broadcast";
    case Operation::kReduce: return "reduce";
    case Operation::kGather: return "gather";
    case Operation::kScatter: return "scatter";
    case Operation::kAllToAll: return "all_to_all";
    case Operation::kBarrier: return "barrier";
    case Operation::kSend: return "send";
    case Operation::kReceive: return "receive";
  }
  return "unknown";
}

const char* to_string(DataType dtype) noexcept {
  switch (dtype) {
    case DataType::kFloat64: return "float64";
    case DataType::kFloat32: return "float32";
    case DataType::kFloat16: return "float16";
    case DataType::kBFloat16: return "bfloat16";
    case DataType::kFloat8E4M3: return "float8_e4m3fn";
    case DataType::kFloat8E5M2: return "float8_e5m2";
    case DataType::kInt8: return "int8";
    case DataType::kInt16: return "int16";
    case DataType::kInt32: return "int32";
    case DataType::kInt64: return "int64";
    case DataType::kUInt8: return "uint8";
    case DataType::kBool: return "bool";
    case DataType::kComplex64: return "complex64";
    case DataType::kComplex128: return "complex128";
  }
  return "unknown";
}

std::size_t size_of(DataType dtype) noexcept {
  switch (dtype) {
    case DataType::kFloat8E4M3:
    case DataType::kFloat8E5M2:
    case DataType::kInt8:
    case DataType::kUInt8:
    case DataType::kBool: return 1;
    case DataType::kFloat16:
    case DataType::kBFloat16:
    case DataType::kInt16: return 2;
    case DataType::kFloat32:
    case DataType::kInt32: return 4;
    case DataType::kFloat64:
    case DataType::kInt64:
    case DataType::kComplex64: return 8;
    case DataType::kComplex128: return 16;
  }
  return 0;
}

const char* to_string(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kAvg: return "avg";
    case ReduceOp::kProduct: return "product";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kBand: return "band";
    case ReduceOp::kBor: return "bor";
    case ReduceOp::kBxor: return "bxor";
    case ReduceOp::kPremulSum: return "premul_sum";
  }
  return "unknown";
}

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
