// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/dtype.h"

namespace atl::pytorch {

using collectives::DataType;

std::string dtype_name(at::ScalarType type) { return std::string(c10::getDtypeNames(type).first); }

std::optional<DataType> data_type(at::ScalarType type) noexcept {
  switch (type) {
    case at::kDouble: return DataType::kFloat64;
    case at::kFloat: return DataType::kFloat32;
    case at::kHalf: return DataType::kFloat16;
    case at::kBFloat16: return DataType::kBFloat16;
    case at::kFloat8_e4m3fn: return DataType::kFloat8E4M3;
    case at::kFloat8_e5m2: return DataType::kFloat8E5M2;
    case at::kChar: return DataType::kInt8;
    case at::kShort: return DataType::kInt16;
    case at::kInt: return DataType::kInt32;
    case at::kLong: return DataType::kInt64;
    case at::kByte: return DataType::kUInt8;
    case at::kBool: return DataType::kBool;
    case at::kComplexFloat: return DataType::kComplex64;
    case at::kComplexDouble: return DataType::kComplex128;
    default: return std::nullopt;
  }
}

at::ScalarType scalar_type(DataType type) noexcept {
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const auto candidate = static_cast<at::ScalarType>(i);
    if (data_type(candidate) == type) return candidate;
  }
  return at::kByte;
}

bool is_common(at::ScalarType type) noexcept {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kInt:
    case at::kLong:
    case at::kChar:
    case at::kByte: return true;
    default: return false;
  }
}

DataType wire_type(at::ScalarType type) noexcept { return data_type(type).value_or(DataType::kUInt8); }

Reduction reduction(const c10d::ReduceOp& op) {
  using collectives::ReduceOp;
  switch (op.op_) {
    case c10d::ReduceOp::SUM: return {ReduceOp::kSum};
    case c10d::ReduceOp::AVG: return {ReduceOp::kAvg};
    case c10d::ReduceOp::PRODUCT: return {ReduceOp::kProduct};
    case c10d::ReduceOp::MIN: return {ReduceOp::kMin};
    case c10d::ReduceOp::MAX: return {ReduceOp::kMax};
    case c10d::ReduceOp::BAND: return {ReduceOp::kBand};
    case c10d::ReduceOp::BOR: return {ReduceOp::kBor};
    case c10d::ReduceOp::BXOR: return {ReduceOp::kBxor};
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* given = dynamic_cast<const PremulFactor*>(op.supplement_.get());
      TORCH_CHECK_VALUE(given != nullptr,
                        "PREMUL_SUM needs a factor: make it with torch.distributed._make_nccl_premul_sum");
      const bool is_tensor = given->tensor_factor.defined();
      return {ReduceOp::kPremulSum, is_tensor ? given->tensor_factor.item<double>() : given->double_factor};
    }
    default: break;
  }
  TORCH_CHECK_VALUE(false, "the atoll backend does not know reduce operation number ", static_cast<int>(op.op_));
}

DataType reduced_type(const char* operation, const at::Tensor& tensor, const Reduction& how) {
  const auto type = data_type(tensor.scalar_type());
  TORCH_CHECK_TYPE(type.has_value(), operation, ": dtype ", dtype_name(tensor.scalar_type()),
                   " cannot be reduced; convert the tensor to a floating-point, complex, bool or signed integer type");
  TORCH_CHECK_VALUE(collectives::is_supported(how.op, *type), operation, ": reduce operation ",
                    collectives::to_string(how.op), " has no meaning for dtype ", dtype_name(tensor.scalar_type()));
  return *type;
}

}  // namespace atl::pytorch
