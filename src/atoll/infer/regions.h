// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "atoll/core/region.h"
#include "atoll/infer/graph.h"
#include "atoll/infer/node_view.h"
#include "atoll/infer/row_map.h"

// The rows of its operands from which an operator computes given rows of its output, and how to compute exactly these
// rows with the operator itself, or with states of parts where it needs sums over all rows. A row is everything at one
// index of the dimension that is split. docs/regions.md lists the operators.
namespace atl::infer {

enum class Locality {
  kElement,  ///< an element depends on elements at the same place
  kBlock,    ///< rows depend on rows around the same place
  kRow,      ///< a row depends on one row, and on all of other operands (weights, keys)
  kPartial,  ///< a result needs sums over the split dimension: parts can make them, and exchange little
  kGlobal,   ///< anything else
};

/// The rows of one operand that rows of the output need.
struct OperandSplit {
  int tensor = 0;
  int dim = -1;  ///< of the operand; -1: all of it is needed for any row
  RowMap map;    ///< if there is a dimension
};

struct NodeSplit {
  Locality locality = Locality::kGlobal;
  std::vector<OperandSplit> operands;  ///< in order of the arguments
  std::int64_t state_bytes =
      0;  ///< kPartial: the size of a part's state, which is combined with those of the other parts
};

struct OperandSlice {
  int tensor = 0;
  int dim = -1;  ///< -1: the whole tensor
  Region rows;
  bool operator==(const OperandSlice&) const = default;
};

/// Rows of `value` to put before and after a slice, where a true border of the whole tensor lies.
struct Pad {
  std::size_t operand = 0;  ///< index into SlicedCall::operands
  int dim = 0;
  std::int64_t low = 0;
  std::int64_t high = 0;
  double value = 0;
  bool operator==(const Pad&) const = default;
};

/// Replaces argument `argument` of the node by `value`.
struct Change {
  std::size_t argument = 0;
  Argument value;
  bool operator==(const Change&) const = default;
};

/// A call of the node's operator that computes given rows: slice the operands, pad them, change arguments, call, keep.
struct SlicedCall {
  std::vector<OperandSlice> operands;  ///< in order of the arguments
  std::vector<Pad> pads;
  std::vector<Change> changes;
  /// The requested rows within the call's output, along the split dimension. Empty: nothing has to be called.
  Region keep;
  bool operator==(const SlicedCall&) const = default;
};

/// The computation in parts of a node that needs sums over a split dimension. Each part makes a state of its rows, of a
/// few bytes: a sum; a maximum with a sum of exponentials; a mean with a variance; products. The result is computed
/// from the states of parts that together have all rows. Both are small graphs of ordinary operators, made for given
/// counts of rows and parts.
struct Partial {
  /// An operand of the node: the part's rows along `dim`, or the whole operand for -1.
  struct Taken {
    std::size_t operand = 0;
    int dim = -1;
  };
  std::int64_t rows = 0;              ///< number of rows that are summed over
  Tensor state;                       ///< of one part; its first dimension is that of parts, and has one row
  std::vector<Taken> of_state = {};   ///< operands of a state; the first is the one that is split
  std::vector<Taken> of_result = {};  ///< operands of the result besides the states; every operand is in one of the two
  /// The dimension along which the result has these rows too, each computed from the states and the operands' rows; -1:
  /// none.
  int output_dim = -1;
  /// Makes the graph that computes the state from `of_state`.
  std::function<Graph(std::int64_t rows)> state_calls = {};
  /// Makes the graph that computes the result. It takes the concatenated states of `parts` parts, each part's share of
  /// all rows (a vector of floats), and `of_result`. It gives as many rows of the node's first output as it takes of
  /// the operands, or all of it where `output_dim` is -1.
  std::function<Graph(std::int64_t parts, std::int64_t rows)> result_calls = {};
};

/// Returns how rows of the output of `node` along its dimension `output_dim` (from 0) can be computed separately. For a
/// node with several outputs this is its first one; the others are sliced alike where they have as many rows there.
/// kPartial: rows cannot be computed separately, but sums can. None: the node is global along this dimension, as are
/// operators without a rule and calls that their operator would refuse. Throws Error(kInvalidArgument) for a dimension
/// that the output does not have, and kProtocol for a node without an output.
std::optional<NodeSplit> split(const Graph& graph, const Node& node, int output_dim);

/// Returns the call that computes rows `rows` of the output along `output_dim`, from no more than the rows that `split`
/// declares; an empty call for empty rows. Throws Error(kInvalidArgument) for rows that do not exist and for a node
/// that cannot be split along this dimension, kProtocol for a call that its operator would refuse.
SlicedCall slice(const Graph& graph, const Node& node, int output_dim, Region rows);

/// The size of a part's state, in the precision of sums, when operand `operand` is split along its dimension `dim`
/// and the node needs sums over it. None: the node cannot be computed by sums over this dimension.
std::optional<std::int64_t> partial_bytes(const Graph& graph, const Node& node, std::size_t operand, int dim);

/// Returns how parts exchange states instead of rows where operand `operand` is split along its dimension `dim` and the
/// node needs sums over it. None: no rule defines it, an output other than the first is used, there is only one row, or
/// a state is not smaller than the operand. Throws as partial_bytes does.
std::optional<Partial> partial(const Graph& graph, const Node& node, std::size_t operand, int dim);

/// Defines how one operator is split. Its functions must not keep references to their arguments.
struct Rule {
  /// As the function split() above, without kPartial. Optional.
  std::function<std::optional<NodeSplit>(const NodeView&, int output_dim)> split = {};
  /// Optional: by default the call takes the operands' rows and changes nothing else. `rows` exist and are not empty;
  /// `split` is what the rule returned.
  std::function<SlicedCall(const NodeView&, const NodeSplit& split, int output_dim, Region rows)> slice = {};
  /// As partial_bytes. Optional.
  std::function<std::optional<std::int64_t>(const NodeView&, std::size_t operand, int dim)> partial_bytes = {};
  /// As partial, which itself checks sizes and uses. Optional: without it, such nodes run whole, on one device.
  std::function<std::optional<Partial>(const NodeView&, std::size_t operand, int dim)> partial = {};
};

/// Registers a rule for the operator `op` ("my::blur", or "my::blur.out" for one overload). Call it before a graph with
/// the operator is split. Throws Error(kInvalidArgument) if the operator has a rule already.
void register_rule(const std::string& op, const Rule& rule);

/// A call that takes of each operand of `split` the rows that `rows` need, and keeps the whole result. A rule's `slice`
/// starts from it.
SlicedCall call_by_rows(const NodeView& view, const NodeSplit& split, Region rows);

}  // namespace atl::infer
