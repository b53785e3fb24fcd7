// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"
#include "atoll/infer/operators/states.h"

// Softmax. Over the split dimension, parts exchange the maximum and the sum of each row.
namespace atl::infer::operators {
namespace {

// (self, dim, dtype)
struct SoftmaxCall {
  int dim = 0;
  Dtype dtype = Dtype::kFloat32;
};

SoftmaxCall read_softmax(const ArgumentReader& reader) {
  const Tensor& self = reader.tensor(0);
  const SoftmaxCall call{reader.dim(1, self.shape.size()), reader.try_dtype(2).value_or(self.dtype)};
  reader.require(is_floating(call.dtype), "its result must be floating");
  return call;
}

// (self, dim, half_to_float)
SoftmaxCall read_plain_softmax(const ArgumentReader& reader) {
  const Tensor& self = reader.tensor(0, kFloats);
  const SoftmaxCall call{reader.dim(1, self.shape.size()), self.dtype};
  reader.require(!reader.boolean(2), "it must not convert halves, which not every device supports");
  return call;
}

Made softmax(const CallView& view) {
  view.require_arguments(3);
  Made made = with_copies(view, one(view, read_softmax(view).dtype, view.tensor(0).shape));
  made.workspace_bytes += bytes_in(made.outputs.front());
  made.operations *= 3;
  return made;
}

Made plain_softmax(const CallView& view) {
  view.require_arguments(3);
  return with_copies(view, one(view, read_plain_softmax(view).dtype, view.tensor(0).shape));
}

using ReadSoftmax = SoftmaxCall (*)(const ArgumentReader&);

Rule softmax_rule(ReadSoftmax read) {
  Rule rule;
  rule.split = [read](const NodeView& view, int output_dim) -> std::optional<NodeSplit> {
    if (read(view).dim == output_dim || view.rank(0) != view.output_rank()) return std::nullopt;
    return same_rows(view, Locality::kRow, output_dim, output_dim);
  };
  rule.partial_bytes = [read](const NodeView& view, std::size_t operand, int dim) -> std::optional<std::int64_t> {
    if (operand != 0 || read(view).dim != dim) return std::nullopt;
    const std::int64_t length = std::max<std::int64_t>(1, view.rows(0, dim));
    return view.output().elements() / length * 2 * sum_bytes(view.output().dtype);
  };
  return rule;
}

Rule softmax_rule(ReadSoftmax read, bool is_log) {
  Rule rule = softmax_rule(read);
  rule.partial = [=](const NodeView& view, std::size_t operand, int dim) -> std::optional<Partial> {
    if (operand != 0 || read(view).dim != dim) return std::nullopt;
    return softmax_states(view, dim, is_log);
  };
  return rule;
}

}  // namespace

void add_softmax(Table& table) {
  table["aten::softmax.int"] = {softmax, softmax_rule(read_softmax, false)};
  table["aten::log_softmax.int"] = {softmax, softmax_rule(read_softmax, true)};
  table["aten::_safe_softmax"] = {softmax, softmax_rule(read_softmax)};
  table["aten::_softmax"] = {plain_softmax, softmax_rule(read_plain_softmax, false)};
  table["aten::_log_softmax"] = {plain_softmax, softmax_rule(read_plain_softmax, true)};
}

}  // namespace atl::infer::operators
