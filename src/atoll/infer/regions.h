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

// Which rows of its operands an operator computes given rows of its output from, and how to compute exactly these
// with the operator itself; or, where it needs sums over all rows, with states of parts. A row is everything at one
// index of the dimension that is split. docs/regions.md lists the operators.
namespace atl::infer {

enum class Locality {
  kElement,  ///< an element depends on elements at the same place
  kBlock,    ///< rows depend on rows around the same place
  kRow,      ///< a row depends on one row, and on all of other operands (weights, keys)
  kPartial,  ///< a result needs sums over the split dimension: parts can make them, and exchange little
  kGlobal,   ///< anything else
};

const char* to_string(Locality locality) noexcept;

/// What one operand contributes to rows of the output.
struct OperandSplit {
  int tensor = 0;
  int dim = -1;  ///< of the operand; -1: all of it is needed for any row
  RowMap map;    ///< where there is a dimension
  bool operator==(const OperandSplit&) const = default;
};

struct NodeSplit {
  Locality locality = Locality::kGlobal;
  std::vector<OperandSplit> operands;  ///< in order of the arguments
  std::int64_t state_bytes = 0;        ///< kPartial: what a part makes, to be combined with the other parts'
  bool operator==(const NodeSplit&) const = default;
};

struct OperandSlice {
  int tensor = 0;
  int dim = -1;  ///< -1: the whole tensor
  Region rows;
  bool operator==(const OperandSlice&) const = default;
};

/// Rows of `value` to be put before and behind a slice: a true border of the whole tensor lies there.
struct Pad {
  std::size_t operand = 0;  ///< index into SlicedCall::operands
  int dim = 0;
  std::int64_t low = 0;
  std::int64_t high = 0;
  double value = 0;
  bool operator==(const Pad&) const = default;
};

/// Argument `argument` of the node is to be `value` instead.
struct Change {
  std::size_t argument = 0;
  Argument value;
  bool operator==(const Change&) const = default;
};

/// A call of the node's operator that computes given rows. Slice, pad, change, call, keep.
struct SlicedCall {
  std::vector<OperandSlice> operands;  ///< in order of the arguments
  std::vector<Pad> pads;
  std::vector<Change> changes;
  /// Of what the call gives, along the split dimension: the rows asked for. Empty: there is nothing to call.
  Region keep;
  bool operator==(const SlicedCall&) const = default;
};

/// How a node that needs sums over a split dimension is computed in parts. Each part makes a state of its rows, of
/// a few bytes: a sum; a maximum with a sum of exponentials; a mean with a variance; products. The result follows
/// from the states of parts that together have all rows. Both are small graphs of ordinary operators, made for
/// counts of rows and parts.
struct Partial {
  /// An operand of the node: the part's rows along `dim`, or (-1) all of it.
  struct Taken {
    std::size_t operand = 0;
    int dim = -1;
    bool operator==(const Taken&) const = default;
  };
  std::int64_t rows = 0;              ///< that are summed over
  Tensor state;                       ///< of one part; its first dimension is that of parts, and has one row
  std::vector<Taken> of_state = {};   ///< what a state is made of; first the operand that is split
  std::vector<Taken> of_result = {};  ///< what the result is made of beside states; all other operands are in either
  /// Along which the result has these rows too, each made of the states and of the operands' rows; -1: along none.
  int output_dim = -1;
  /// Takes `of_state`, gives the state.
  std::function<Graph(std::int64_t rows)> state_calls = {};
  /// Takes the states of `parts` parts behind each other, the share of all rows that each part has (a vector of
  /// floats), and `of_result`; gives as many rows of the node's first output as it takes of operands, or all of it
  /// where `output_dim` is -1.
  std::function<Graph(std::int64_t parts, std::int64_t rows)> result_calls = {};
};

/// Whether and how rows of the output of `node` along its dimension `output_dim` (from 0) can be computed apart. A
/// node with several outputs is meant by its first one; the others are sliced alike where they have as many rows
/// there. kPartial: rows cannot be computed apart, but sums can. None: the node is global along this dimension, as
/// are operators that nobody gave a rule. Throws Error(kProtocol) for a node that its operator would refuse,
/// kInvalidArgument for a dimension that the output does not have.
std::optional<NodeSplit> split(const Graph& graph, const Node& node, int output_dim);

/// How to compute rows `rows` of the output along `output_dim`, from no more than the rows that `split` declares. No
/// rows: an empty call. Throws Error(kInvalidArgument) for rows that do not exist and for a node that cannot be split
/// like that.
SlicedCall slice(const Graph& graph, const Node& node, int output_dim, Region rows);

/// The bytes that a part makes, in the precision of sums, when operand `operand` is split along its dimension `dim`
/// and the node needs sums over it. None: the node does not work by sums over this dimension.
std::optional<std::int64_t> partial_bytes(const Graph& graph, const Node& node, std::size_t operand, int dim);

/// How parts exchange states instead of rows where operand `operand` is split along its dimension `dim`, and the node
/// needs sums over it. None: no rule says how, an output but the first is used, there is one row, or a state is not
/// smaller than the operand. Throws as partial_bytes.
std::optional<Partial> partial(const Graph& graph, const Node& node, std::size_t operand, int dim);

/// How one operator is split. Functions must not keep what they get.
struct Rule {
  /// As the function above, without kPartial. Need not be set.
  std::function<std::optional<NodeSplit>(const NodeView&, int output_dim)> split;
  /// Unset: the operands' rows, and nothing else. Rows are not empty and exist; `split` is what the rule gave.
  std::function<SlicedCall(const NodeView&, const NodeSplit& split, int output_dim, Region rows)> slice;
  /// As partial_bytes. Need not be set.
  std::function<std::optional<std::int64_t>(const NodeView&, std::size_t operand, int dim)> partial_bytes;
  /// As partial, which looks at sizes and uses itself. Need not be set: then such nodes run whole, on one device.
  std::function<std::optional<Partial>(const NodeView&, std::size_t operand, int dim)> partial = {};
};

/// Gives the operator `op` ("my::blur", or "my::blur.out" for one overload) a rule; before a graph that has it is
/// split. Throws Error(kInvalidArgument) if it has one.
void register_rule(const std::string& op, const Rule& rule);

/// Each operand of `split` by the rows that `rows` needs of it, all of the result kept: what a rule's `slice` starts
/// from.
SlicedCall call_by_rows(const NodeView& view, const NodeSplit& split, Region rows);

}  // namespace atl::infer
