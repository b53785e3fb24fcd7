// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"

// Padding operators: a slice is padded where it ends at a true border, with as many rows as are requested.
namespace atl::infer::operators {
namespace {

enum class Border { kConstant, kReflect, kReplicate, kCircular };

// (self, list, ...). The list has pairs of rows (low, high), the last dimension's first; negative values remove rows.
struct Padding {
  Border border = Border::kConstant;
  Ints list;
  Shape made;

  // The entry of `low` for dimension `dim`.
  std::size_t entry(int dim) const { return 2 * (made.size() - 1 - static_cast<std::size_t>(dim)); }
  bool has(int dim) const { return entry(dim) + 1 < list.size(); }
  std::int64_t low(int dim) const { return has(dim) ? list[entry(dim)] : 0; }
  std::int64_t high(int dim) const { return has(dim) ? list[entry(dim) + 1] : 0; }
};

// The largest number of rows that can be copied before or after `rows`.
std::int64_t max_padding(Border border, std::int64_t rows) {
  if (border == Border::kReflect) return rows - 1;
  return border == Border::kCircular ? rows : kMaxAdmittedRows;
}

Padding read_padded(const ArgumentReader& reader, Border border) {
  const Tensor& self = reader.tensor(0);
  const std::int64_t least = border == Border::kConstant ? -kMaxAdmittedRows : 0;
  Padding padding{border, reader.integers(1, least, kMaxAdmittedRows), self.shape};
  const std::size_t pairs = padding.list.size() / 2;
  reader.require(padding.list.size() % 2 == 0 && pairs <= padding.made.size(),
                 "its list must have a pair for each dimension");
  for (std::size_t i = 0; i < pairs; ++i) {
    std::int64_t& rows = padding.made[padding.made.size() - 1 - i];
    const std::int64_t low = padding.list[2 * i];
    const std::int64_t high = padding.list[2 * i + 1];
    reader.require(rows + std::min<std::int64_t>(low, 0) + std::min<std::int64_t>(high, 0) >= 0,
                   "it removes more rows than there are");
    const std::int64_t most = max_padding(border, rows);
    reader.require(low <= most && high <= most, "it pads with more rows than there are to copy");
    rows += low + high;
  }
  return padding;
}

// Each spatial dimension has a pair; a batch and channels before them have none.
Padding read_copied(const ArgumentReader& reader, Border border) {
  const std::size_t rank = reader.tensor(0, kFloats).shape.size();
  reader.require(reader.tensor(0).elements() > 0, "it has no rows to copy");
  const std::size_t spatial = reader.integers(1, 0, kMaxAdmittedRows).size() / 2;
  const std::size_t least_before = border == Border::kCircular ? 2 : 1;
  reader.require(spatial >= 1 && spatial <= 3 && rank >= spatial + least_before && rank <= spatial + 2,
                 "its input has an invalid number of dimensions");
  return read_padded(reader, border);
}

// (self, pad, value)
Padding read_constant(const ArgumentReader& reader) { return read_padded(reader, Border::kConstant); }

Made padded(const CallView& view, const Padding& padding) {
  return with_copies(view, seen(view, view.tensor(0), padding.made));
}

Made constant_pad(const CallView& view) {
  view.require_arguments(3);
  view.require_fits(2, view.tensor(0).dtype);
  return padded(view, read_constant(view));
}

// (self, pad, mode, value)
Padding read_pad(const ArgumentReader& reader) {
  const std::string mode = reader.text(2);
  if (mode == "constant") return read_constant(reader);
  reader.require(reader.is_null(3) || reader.real(3) == 0, "its value must be 0 in this mode");
  if (mode == "reflect") return read_copied(reader, Border::kReflect);
  if (mode == "replicate") return read_copied(reader, Border::kReplicate);
  reader.require(mode == "circular", "its mode must be constant, reflect, replicate or circular");
  return read_copied(reader, Border::kCircular);
}

Made pad(const CallView& view) {
  view.require_arguments(4);
  if (view.text(2) == "constant" && !view.is_null(3)) view.require_fits(3, view.tensor(0).dtype);
  return padded(view, read_pad(view));
}

std::optional<NodeSplit> split_padded(const NodeView& view, const Padding& padding, int output_dim) {
  if (view.operands() != 1 || view.rank(0) != view.output_rank()) return std::nullopt;
  const std::int64_t low = padding.low(output_dim);
  if (low == 0 && padding.high(output_dim) == 0) return same_rows(view, Locality::kElement, output_dim, output_dim);
  if (view.rows(0, output_dim) < 1 || view.output_rows(output_dim) != at(padding.made, output_dim)) return std::nullopt;
  switch (padding.border) {
    case Border::kConstant: return block_rows(view, output_dim, maps::Shift{-low});
    case Border::kReflect: return block_rows(view, output_dim, maps::Reflect{low});
    case Border::kReplicate: return block_rows(view, output_dim, maps::Replicate{low});
    case Border::kCircular: break;
  }
  return std::nullopt;
}

SlicedCall slice_padded(const NodeView& view, Padding padding, const NodeSplit& split, int output_dim, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  if (std::holds_alternative<maps::Identity>(split.operands[0].map)) return call;
  const std::size_t entry = padding.entry(output_dim);
  const std::int64_t count = view.rows(0, output_dim);
  const std::int64_t before = padding.low(output_dim);
  const Region wanted{rows.begin - before, rows.end - before};  // in rows of the operand
  const Cut parts = cut(wanted, count);
  padding.list[entry] = parts.low;
  padding.list[entry + 1] = parts.high;
  // A border that copies rows is made from its beginning, even if only rows further out are requested.
  if (!std::holds_alternative<maps::Shift>(split.operands[0].map)) {
    padding.list[entry] = std::max<std::int64_t>(0, -wanted.begin);
    padding.list[entry + 1] = std::max<std::int64_t>(0, wanted.end - count);
    const std::int64_t begin = call.operands[0].rows.begin - padding.list[entry];
    call.keep = {wanted.begin - begin, wanted.end - begin};
  }
  call.changes.push_back({1, padding.list});
  return call;
}

template <typename Read>
Rule border_rule(Read read) {
  return {reading(read, split_padded), reading(read, slice_padded)};
}

// (self, padding)
Operator border_operator(Border border, std::size_t spatial) {
  const auto read = [=](const ArgumentReader& reader) {
    reader.require_arguments(2);
    reader.require(reader.integers(1, 0, kMaxAdmittedRows).size() == 2 * spatial,
                   "its list must have a pair for each dimension");
    return read_copied(reader, border);
  };
  return {reading(read, padded), border_rule(read)};
}

}  // namespace

void add_borders(Table& table) {
  table["aten::pad"] = {pad, border_rule(read_pad), true};
  table["aten::constant_pad_nd"] = {constant_pad, border_rule(read_constant), true};
  for (std::size_t spatial = 1; spatial <= 3; ++spatial) {
    const std::string dims = std::to_string(spatial) + "d";
    table["aten::reflection_pad" + dims] = border_operator(Border::kReflect, spatial);
    table["aten::replication_pad" + dims] = border_operator(Border::kReplicate, spatial);
  }
}

}  // namespace atl::infer::operators
