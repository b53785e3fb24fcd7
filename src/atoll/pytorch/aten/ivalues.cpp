// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/aten/ivalues.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/jit_type.h>

#include <array>
#include <string>
#include <vector>

#include "atoll/core/error.h"

namespace atl::pytorch {
namespace {

using infer::Dtype;

constexpr std::array<c10::ScalarType, 10> kTypes{c10::kHalf,  c10::kBFloat16, c10::kFloat, c10::kDouble, c10::kChar,
                                                 c10::kShort, c10::kInt,      c10::kLong,  c10::kByte,   c10::kBool};

// The type that a schema wants, without "optional".
struct Wanted {
  c10::TypePtr type;
  bool is_optional = false;
};

Wanted unwrapped(const c10::TypePtr& type) {
  const auto* optional = type->castRaw<c10::OptionalType>();
  if (optional == nullptr) return {type, false};
  return {optional->getElementType(), true};
}

c10::TypePtr element_of(const c10::TypePtr& list) { return list->expectRef<c10::ListType>().getElementType(); }

bool is_integer(c10::TypeKind kind) { return kind == c10::TypeKind::IntType || kind == c10::TypeKind::SymIntType; }

// Converts one value to a schema's argument.
class Conversion {
 public:
  Conversion(const c10::Argument& argument, c10::Device device)
      : argument_(argument), wanted_(unwrapped(argument.real_type())), device_(device) {}

  c10::IValue operator()(std::monostate /*nothing*/) const {
    if (!wanted_.is_optional) refuse("nothing");
    return {};
  }
  c10::IValue operator()(bool value) const {
    switch (kind()) {
      case c10::TypeKind::BoolType: return value;
      case c10::TypeKind::NumberType: return c10::Scalar(value);
      case c10::TypeKind::TensorType: return wrapped(value);
      default: refuse("a boolean");
    }
  }
  c10::IValue operator()(std::int64_t value) const {
    if (is_integer(kind())) return value;
    switch (kind()) {
      case c10::TypeKind::FloatType: return static_cast<double>(value);
      case c10::TypeKind::NumberType: return c10::Scalar(value);
      case c10::TypeKind::TensorType: return wrapped(value);
      case c10::TypeKind::ListType:
        return (*this)(infer::Ints(static_cast<std::size_t>(argument_.N().value_or(1)), value));
      default: refuse("an integer");
    }
  }
  c10::IValue operator()(double value) const {
    switch (kind()) {
      case c10::TypeKind::FloatType: return value;
      case c10::TypeKind::NumberType: return c10::Scalar(value);
      case c10::TypeKind::TensorType: return wrapped(value);
      default: refuse("a float");
    }
  }
  c10::IValue operator()(infer::TensorId /*tensor*/) const {
    if (kind() != c10::TypeKind::TensorType) refuse("a tensor");
    return {};
  }
  c10::IValue operator()(const infer::TensorIds& list) const {
    if (kind() != c10::TypeKind::ListType) refuse("a list of tensors");
    const Wanted element = unwrapped(element_of(wanted_.type));
    if (element.type->kind() != c10::TypeKind::TensorType) refuse("a list of tensors");
    for (const auto& id : list.ids) {
      if (!id && !element.is_optional) refuse("a list of tensors with an absent one");
    }
    return {};
  }
  c10::IValue operator()(const infer::Ints& values) const {
    if (is_integer(element_kind())) return values;
    if (element_kind() == c10::TypeKind::FloatType) return std::vector<double>(values.begin(), values.end());
    refuse("a list of integers");
  }
  c10::IValue operator()(const infer::Floats& values) const {
    if (element_kind() != c10::TypeKind::FloatType) refuse("a list of floats");
    return values;
  }
  c10::IValue operator()(const infer::Bools& values) const {
    if (element_kind() != c10::TypeKind::BoolType) refuse("a list of booleans");
    c10::List<bool> list;
    for (const bool value : values) list.push_back(value);
    return list;
  }
  c10::IValue operator()(const infer::Text& text) const {
    if (kind() != c10::TypeKind::StringType) refuse("a text");
    return text.value;
  }
  c10::IValue operator()(Dtype dtype) const {
    if (kind() != c10::TypeKind::ScalarTypeType) refuse("an element type");
    return static_cast<std::int64_t>(scalar_type_of(dtype));
  }
  c10::IValue operator()(infer::MemoryFormat format) const {
    if (kind() != c10::TypeKind::MemoryFormatType) refuse("a memory format");
    constexpr std::array kFormats{c10::MemoryFormat::Contiguous, c10::MemoryFormat::Preserve,
                                  c10::MemoryFormat::ChannelsLast, c10::MemoryFormat::ChannelsLast3d};
    return static_cast<std::int64_t>(kFormats[static_cast<std::size_t>(format)]);
  }
  c10::IValue operator()(infer::Layout /*strided*/) const {
    if (kind() != c10::TypeKind::LayoutType) refuse("a layout");
    return static_cast<std::int64_t>(c10::kStrided);
  }
  c10::IValue operator()(infer::RunnersDevice /*device*/) const {
    if (kind() != c10::TypeKind::DeviceObjType) refuse("a device");
    return device_;
  }

 private:
  c10::TypeKind kind() const { return wanted_.type->kind(); }
  c10::TypeKind element_kind() const {
    if (kind() != c10::TypeKind::ListType) return c10::TypeKind::NoneType;
    return unwrapped(element_of(wanted_.type)).type->kind();
  }
  static c10::IValue wrapped(const c10::Scalar& scalar) { return at::native::wrapped_scalar_tensor(scalar); }
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::kProtocol, "its argument " + argument_.name() + " is " + what + ": give what fits " +
                                          argument_.real_type()->annotation_str());
  }

  const c10::Argument& argument_;
  Wanted wanted_;
  c10::Device device_;
};

}  // namespace

c10::ScalarType scalar_type_of(Dtype dtype) noexcept { return kTypes[static_cast<std::size_t>(dtype)]; }

Dtype dtype_of(c10::ScalarType type) {
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i] == type) return static_cast<Dtype>(i);
  }
  throw Error(ErrorKind::kInvalidArgument,
              std::string("a tensor of ") + c10::toString(type) + ": graphs do not have such elements");
}

c10::IValue ivalue_of(const c10::Argument& argument, const infer::Argument& value, c10::Device device) {
  return std::visit(Conversion(argument, device), value);
}

bool is_list_of_optionals(const c10::Argument& argument) {
  const Wanted list = unwrapped(argument.real_type());
  return list.type->kind() == c10::TypeKind::ListType && unwrapped(element_of(list.type)).is_optional;
}

}  // namespace atl::pytorch
