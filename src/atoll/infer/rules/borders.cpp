// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "atoll/infer/rules/rules.h"

// Padding operators: a slice is padded where it ends at a true border, with as many rows as are requested.
namespace atl::infer {
namespace {

enum class Border { kConstant, kReflect, kReplicate, kOther };

// The padding of one dimension in rows. The list has pairs, the last dimension's first; negative values remove rows.
struct Padding {
  std::size_t entry = 0;  // in the list
  std::int64_t low = 0;
  std::int64_t high = 0;
};

Padding padding_of(const NodeView& view, int dim) {
  const Ints list = view.integers(1);
  Padding padding;
  padding.entry = 2 * static_cast<std::size_t>(view.rank(0) - 1 - dim);
  if (padding.entry + 1 < list.size()) {
    padding.low = list[padding.entry];
    padding.high = list[padding.entry + 1];
  }
  return padding;
}

Border border_of(const NodeView& view, Border border) {
  if (view.node().op != "aten::pad") return border;
  const std::string mode = view.text(2);
  if (mode == "constant") return Border::kConstant;
  if (mode == "reflect") return Border::kReflect;
  return mode == "replicate" ? Border::kReplicate : Border::kOther;
}

std::optional<NodeSplit> split_border(const NodeView& view, Border border, int output_dim) {
  if (view.operands() != 1 || view.rank(0) != view.output_rank()) return std::nullopt;
  const std::int64_t rows = view.rows(0, output_dim);
  const Padding padding = padding_of(view, output_dim);
  if (padding.low == 0 && padding.high == 0) return same_rows(view, Locality::kElement, output_dim, output_dim);
  if (rows < 1 || view.output_rows(output_dim) != rows + padding.low + padding.high) return std::nullopt;
  const std::int64_t most = std::max(padding.low, padding.high);
  switch (border_of(view, border)) {
    case Border::kConstant: return block_rows(view, output_dim, maps::Shift{-padding.low});
    case Border::kReflect:
      if (padding.low < 0 || padding.high < 0 || most >= rows) return std::nullopt;
      return block_rows(view, output_dim, maps::Reflect{padding.low});
    case Border::kReplicate:
      if (padding.low < 0 || padding.high < 0) return std::nullopt;
      return block_rows(view, output_dim, maps::Replicate{padding.low});
    case Border::kOther: break;
  }
  return std::nullopt;
}

SlicedCall slice_border(const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  if (std::holds_alternative<maps::Identity>(split.operands[0].map)) return call;
  const Padding padding = padding_of(view, output_dim);
  const std::int64_t count = view.rows(0, output_dim);
  const Region wanted{rows.begin - padding.low, rows.end - padding.low};  // in rows of the operand
  Ints list = view.integers(1);
  if (std::holds_alternative<maps::Shift>(split.operands[0].map)) {
    const Cut parts = cut(wanted, count);
    list[padding.entry] = parts.low;
    list[padding.entry + 1] = parts.high;
  } else {  // a border that copies rows is made from its beginning, even if only rows further out are requested
    const std::int64_t low = std::max<std::int64_t>(0, -wanted.begin);
    list[padding.entry] = low;
    list[padding.entry + 1] = std::max<std::int64_t>(0, wanted.end - count);
    const std::int64_t begin = call.operands[0].rows.begin - low;
    call.keep = {wanted.begin - begin, wanted.end - begin};
  }
  call.changes.push_back({1, list});
  return call;
}

Rule border_rule(Border border) {
  return {
      [=](const NodeView& view, int output_dim) { return split_border(view, border, output_dim); }, slice_border, {}};
}

}  // namespace

void add_border_rules(Rules& rules) {
  rules["aten::pad"] = border_rule(Border::kOther);
  rules["aten::constant_pad_nd"] = border_rule(Border::kConstant);
  for (int spatial = 1; spatial <= 3; ++spatial) {
    const std::string dims = std::to_string(spatial) + "d";
    rules["aten::reflection_pad" + dims] = border_rule(Border::kReflect);
    rules["aten::replication_pad" + dims] = border_rule(Border::kReplicate);
  }
}

}  // namespace atl::infer
