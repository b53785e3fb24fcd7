// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace atl::infer {

/// The element types that a graph may have.
enum class Dtype { kFloat16, kBfloat16, kFloat32, kFloat64, kInt8, kInt16, kInt32, kInt64, kUint8, kBool };

/// PyTorch's name: "float32".
const char* to_string(Dtype dtype) noexcept;
std::optional<Dtype> try_dtype(std::string_view name) noexcept;
/// The size of one element.
std::int64_t bytes_of(Dtype dtype) noexcept;
bool is_floating(Dtype dtype) noexcept;

enum class MemoryFormat { kContiguous, kPreserve, kChannelsLast, kChannelsLast3d };
enum class Layout { kStrided };

using Shape = std::vector<std::int64_t>;

struct Tensor {
  Dtype dtype = Dtype::kFloat32;
  Shape shape;

  std::int64_t elements() const noexcept;
  std::int64_t bytes() const noexcept { return elements() * bytes_of(dtype); }
  bool operator==(const Tensor&) const = default;
};
/// "float32 [1, 3, 8, 8]"
std::string to_string(const Tensor& tensor);

// The types of a node's arguments besides null, a boolean, an integer and a float.

struct TensorId {
  int id = 0;
  bool operator==(const TensorId&) const = default;
};
struct TensorIds {
  std::vector<std::optional<int>> ids;  ///< an element is absent where an operator takes a list of optional tensors
  bool operator==(const TensorIds&) const = default;
};
struct Text {
  std::string value;
  bool operator==(const Text&) const = default;
};
/// The device that the graph runs on.
struct RunnersDevice {
  bool operator==(const RunnersDevice&) const = default;
};
using Ints = std::vector<std::int64_t>;
using Floats = std::vector<double>;
using Bools = std::vector<bool>;

using Argument = std::variant<std::monostate, bool, std::int64_t, double, TensorId, TensorIds, Ints, Floats, Bools,
                              Text, Dtype, MemoryFormat, Layout, RunnersDevice>;

/// One call of an operator. `args` holds every argument of its schema, in order.
struct Node {
  std::string op;        ///< "aten::conv2d"
  std::string overload;  ///< "" for PyTorch's "default"
  std::vector<Argument> args;
  std::vector<int> outputs;  ///< indices of tensors
  bool is_list = false;      ///< the outputs are the elements of one list, as unbind returns it
  std::string module = {};   ///< the module that calls it, for messages: "layer1.0"; "" if not known

  std::string name() const { return overload.empty() ? op : op + "." + overload; }
  bool operator==(const Node&) const = default;
};

struct Weight {
  int tensor = 0;
  std::string name;
  bool operator==(const Weight&) const = default;
};

/// A model as data. Tensors are identified by their index; nodes are in an order in which they can run.
struct Graph {
  std::vector<Tensor> tensors;
  std::vector<int> inputs;
  std::vector<Weight> weights;
  std::vector<Node> nodes;
  std::vector<Argument> outputs;  ///< tensors, or constants
  std::string input_structure;    ///< how the caller's values are nested; not interpreted here
  std::string output_structure;

  bool operator==(const Graph&) const = default;
};

// A graph may come from a stranger, so everything in it has a bound.
inline constexpr std::size_t kMaxNodes = 20'000;
inline constexpr std::size_t kMaxTensors = 100'000;
inline constexpr std::size_t kMaxDims = 8;
inline constexpr std::size_t kMaxArguments = 1'000;  ///< of a node, including the entries of lists
inline constexpr std::int64_t kIntegerBound = std::int64_t{1}
                                              << 40;  ///< integers and counts of elements are below this
inline constexpr std::size_t kMaxNameBytes = 1'000;
inline constexpr std::size_t kMaxTextBytes = std::size_t{1} << 20;

/// Names a node in messages: "node 7 (aten::relu in layer1.0)", without the number if the node is not one of the
/// graph's.
std::string described(const Graph& graph, const Node& node);

/// The tensors among the arguments of `node`, in order; absent ones are left out.
std::vector<int> operands_of(const Node& node);

/// Throws Error(kProtocol), which names the node or the tensor, unless every tensor is made exactly once (as an
/// input, a weight or an output of a node) and before it is used, and everything is within its bounds.
void check(const Graph& graph);

}  // namespace atl::infer
