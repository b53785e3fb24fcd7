// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/argument_json.h"

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/json/fields.h"

namespace atl::infer {
namespace {

constexpr std::array<const char*, 4> kMemoryFormats{"contiguous_format", "preserve_format", "channels_last",
                                                    "channels_last_3d"};

[[noreturn]] void wrong_value(const std::string& where, const Json& value, const std::string& wanted) {
  json::refuse(value, where, wanted, ErrorKind::kProtocol);
}

double float_from_text(const Json& value, const std::string& where) {
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  wrong_value(where, value, R"("inf", "-inf" or "nan")");
}

Json float_json(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double float_from(const Json& value, const std::string& where) {
  if (value.is_string()) return float_from_text(value, where);
  if (!value.is_number()) wrong_value(where, value, "a number");
  return value.get<double>();
}

// Applies `read` to each entry of the list `value`.
template <typename List, typename Read>
List list_from(const Json& value, const std::string& where, Read read) {
  if (!value.is_array()) wrong_value(where, value, "a list");
  if (value.size() > kMaxArguments) {
    throw Error(ErrorKind::kProtocol,
                where + " has " + std::to_string(value.size()) + " entries: at most " + std::to_string(kMaxArguments));
  }
  List list;
  for (const Json& entry : value) list.push_back(read(entry, where));
  return list;
}

std::optional<int> optional_tensor_from(const Json& value, const std::string& where) {
  if (value.is_null()) return std::nullopt;
  return tensor_from(value, where);
}

bool boolean_from(const Json& value, const std::string& where) {
  if (!value.is_boolean()) wrong_value(where, value, "true or false");
  return value.get<bool>();
}

Dtype dtype_from(const Json& value, const std::string& where) {
  const std::optional<Dtype> dtype = value.is_string() ? try_dtype(value.get<std::string>()) : std::nullopt;
  if (!dtype) wrong_value(where, value, "the name of an element type, such as \"float32\"");
  return *dtype;
}

MemoryFormat memory_format_from(const Json& value, const std::string& where) {
  for (std::size_t i = 0; i < kMemoryFormats.size(); ++i) {
    if (value == kMemoryFormats[i]) return static_cast<MemoryFormat>(i);
  }
  wrong_value(where, value, "the name of a memory format, such as \"contiguous_format\"");
}

// Reads {"ints": [1, 2]} and the like: an object whose one key names the type of the value.
Argument tagged_from(const Json& value, const std::string& where) {
  if (value.size() != 1) wrong_value(where, value, "an object with one key that names its type");
  const std::string& tag = value.begin().key();
  const Json& content = value.begin().value();
  if (tag == "tensor") return TensorId{tensor_from(content, where)};
  if (tag == "tensors") {
    return TensorIds{list_from<std::vector<std::optional<int>>>(content, where, optional_tensor_from)};
  }
  if (tag == "ints") return list_from<Ints>(content, where, integer_from);
  if (tag == "floats") return list_from<Floats>(content, where, float_from);
  if (tag == "bools") return list_from<Bools>(content, where, boolean_from);
  if (tag == "float") return float_from_text(content, where);
  if (tag == "text") return Text{text_from(content, where)};
  if (tag == "dtype") return dtype_from(content, where);
  if (tag == "memory_format") return memory_format_from(content, where);
  if (tag == "layout" && content == "strided") return Layout::kStrided;
  if (tag == "device" && content == true) return RunnersDevice{};
  wrong_value(where, value, "one of the forms that docs/regions.md lists");
}

Json tagged(const char* tag, Json content) {
  Json value = Json::object();
  value[tag] = std::move(content);
  return value;
}

Json written(std::monostate /*nothing*/) { return nullptr; }
Json written(bool value) { return value; }
Json written(std::int64_t value) { return value; }
Json written(double value) { return std::isfinite(value) ? Json(value) : tagged("float", float_json(value)); }
Json written(TensorId tensor) { return tagged("tensor", tensor.id); }
Json written(const TensorIds& list) {
  Json ids = Json::array();
  for (const std::optional<int>& id : list.ids) ids.push_back(id ? Json(*id) : Json(nullptr));
  return tagged("tensors", std::move(ids));
}
Json written(const Ints& values) { return tagged("ints", values); }
Json written(const Floats& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(float_json(value));
  return tagged("floats", std::move(list));
}
Json written(const Bools& values) { return tagged("bools", values); }
Json written(const Text& text) { return tagged("text", text.value); }
Json written(Dtype dtype) { return tagged("dtype", to_string(dtype)); }
Json written(MemoryFormat format) { return tagged("memory_format", kMemoryFormats[static_cast<std::size_t>(format)]); }
Json written(Layout /*strided*/) { return tagged("layout", "strided"); }
Json written(RunnersDevice /*device*/) { return tagged("device", true); }

}  // namespace

std::int64_t integer_from(const Json& value, const std::string& where) {
  const bool small = value.is_number_unsigned()
                         ? value.get<std::uint64_t>() < std::uint64_t{kIntegerBound}
                         : value.is_number_integer() && value.get<std::int64_t>() > -kIntegerBound;
  if (!small) wrong_value(where, value, "an integer whose magnitude is less than 2^40");
  return value.get<std::int64_t>();
}

int tensor_from(const Json& value, const std::string& where) {
  const std::int64_t id = integer_from(value, where);
  if (id < 0 || id >= static_cast<std::int64_t>(kMaxTensors)) wrong_value(where, value, "the index of a tensor");
  return static_cast<int>(id);
}

std::string text_from(const Json& value, const std::string& where) {
  if (!value.is_string()) wrong_value(where, value, "a string");
  return value.get<std::string>();
}

Argument argument_from(const Json& value, const std::string& where) {
  if (value.is_null()) return std::monostate{};
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_number()) return integer_from(value, where);
  if (value.is_object()) return tagged_from(value, where);
  wrong_value(where, value, "a value, or an object with one key that names its type");
}

Json argument_json(const Argument& argument) {
  return std::visit([](const auto& value) { return written(value); }, argument);
}

}  // namespace atl::infer
