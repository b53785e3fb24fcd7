// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/engine/engine_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <variant>

#include "atoll/core/error.h"
#include "atoll/infer/wire/lossy.h"
#include "atoll/plan/random.h"

namespace atl::infer {
namespace {

template <class T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
void write(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

double value_at(Dtype dtype, const std::byte* from) {
  switch (dtype) {
    case Dtype::kFloat16: return static_cast<double>(wire::float_of_half(read<std::uint16_t>(from)));
    case Dtype::kBfloat16:
      return static_cast<double>(std::bit_cast<float>(std::uint32_t{read<std::uint16_t>(from)} << 16U));
    case Dtype::kFloat32: return static_cast<double>(read<float>(from));
    default: return read<double>(from);
  }
}

void make_element(Dtype dtype, plan::Random& random, std::byte* to) {
  const double value = 2 * random.unit() - 1;
  switch (dtype) {
    case Dtype::kFloat16: return write(to, wire::half_of(value));
    case Dtype::kBfloat16:
      return write(to, static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16U));
    case Dtype::kFloat32: return write(to, static_cast<float>(value));
    case Dtype::kFloat64: return write(to, value);
    case Dtype::kUint8: return write(to, static_cast<std::uint8_t>(random.below(256)));
    case Dtype::kBool: return write(to, std::uint8_t{1});
    case Dtype::kInt8: return write(to, static_cast<std::int8_t>(random.below(2)));
    case Dtype::kInt16: return write(to, static_cast<std::int16_t>(random.below(2)));
    case Dtype::kInt32: return write(to, static_cast<std::int32_t>(random.below(2)));
    case Dtype::kInt64: return write(to, static_cast<std::int64_t>(random.below(2)));
  }
}

double share_that_differs(std::size_t element_bytes, std::span<const std::byte> a, std::span<const std::byte> b) {
  std::size_t different = 0;
  for (std::size_t at = 0; at < a.size(); at += element_bytes) {
    different += std::memcmp(a.data() + at, b.data() + at, element_bytes) != 0 ? 1 : 0;
  }
  return static_cast<double>(different * element_bytes) / static_cast<double>(a.size());
}

}  // namespace

double deviation_of(const Tensor& type, std::span<const std::byte> expected, std::span<const std::byte> found) {
  const auto element_bytes = static_cast<std::size_t>(bytes_of(type.dtype));
  if (expected.empty()) return 0;
  if (!is_floating(type.dtype)) return share_that_differs(element_bytes, expected, found);
  double largest = 0;
  double difference = 0;
  for (std::size_t at = 0; at < expected.size(); at += element_bytes) {
    const double a = value_at(type.dtype, expected.data() + at);
    const double b = value_at(type.dtype, found.data() + at);
    if (std::isfinite(a)) largest = std::max(largest, std::fabs(a));
    if (std::isfinite(b)) largest = std::max(largest, std::fabs(b));
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, std::fabs(a - b));
  }
  return difference > 0 ? difference / largest : 0;
}

double usual_tolerance(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kFloat64: return 1e-9;
    case Dtype::kFloat32: return 1e-4;
    case Dtype::kFloat16: return 1e-2;
    case Dtype::kBfloat16: return 8e-2;
    default: return 1e-3;
  }
}

std::vector<HostBytes> made_inputs(const Graph& graph, std::uint64_t seed) {
  plan::Random random(seed, 0, plan::Purpose::kChoice);
  std::vector<HostBytes> inputs = zero_inputs(graph);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& type = graph.tensors.at(static_cast<std::size_t>(graph.inputs[i]));
    const auto bytes = std::make_shared<std::vector<std::byte>>(inputs[i].bytes.size());
    const auto element_bytes = static_cast<std::size_t>(bytes_of(type.dtype));
    for (std::size_t at = 0; at < bytes->size(); at += element_bytes) {
      make_element(type.dtype, random, bytes->data() + at);
    }
    inputs[i] = {*bytes, bytes};
  }
  return inputs;
}

std::vector<HostBytes> zero_inputs(const Graph& graph) {
  std::vector<HostBytes> inputs;
  for (const int input : graph.inputs) {
    const Tensor& type = graph.tensors.at(static_cast<std::size_t>(input));
    const auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(type.bytes()));
    inputs.push_back({*bytes, bytes});
  }
  return inputs;
}

std::string misfit_of(const Graph& graph, const OperatorRunner& runner, std::span<const Value> values) {
  std::vector<const Tensor*> wanted;
  for (const Argument& output : graph.outputs) {
    const auto* tensor = std::get_if<TensorId>(&output);
    if (tensor != nullptr) wanted.push_back(&graph.tensors.at(static_cast<std::size_t>(tensor->id)));
  }
  if (values.size() != wanted.size()) {
    return "it returns " + std::to_string(values.size()) + " tensors, but the model returns " +
           std::to_string(wanted.size());
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i]) return "output " + std::to_string(i) + " is missing";
    try {
      const Tensor found = runner.type_of(values[i]);
      if (found == *wanted[i]) continue;
      return "output " + std::to_string(i) + " is " + to_string(found) + ", but the model's is " +
             to_string(*wanted[i]);
    } catch (const Error& error) {
      return "output " + std::to_string(i) + ": " + error.what();
    }
  }
  return {};
}

}  // namespace atl::infer
