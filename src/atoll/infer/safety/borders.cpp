// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "atoll/infer/safety/validators.h"

// Padding operators.
namespace atl::infer::safety {
namespace {

// The input's sizes with the pairs (low, high) of the list added, the last dimension's first. Each entry is at least
// `least` and, where rows are copied, at most `most_of` the number of rows.
template <typename MostOf>
Made padded(const CallView& view, std::int64_t least, MostOf most_of) {
  const Tensor& self = view.tensor(0);
  const Ints list = view.integers(1, least, kMaxAdmittedRows);
  Shape shape = self.shape;
  view.require(list.size() % 2 == 0 && list.size() / 2 <= shape.size(), "its list must have a pair for each dimension");
  for (std::size_t i = 0; i < list.size() / 2; ++i) {
    std::int64_t& rows = shape[shape.size() - 1 - i];
    const std::int64_t low = list[2 * i];
    const std::int64_t high = list[2 * i + 1];
    view.require(rows + std::min<std::int64_t>(low, 0) + std::min<std::int64_t>(high, 0) >= 0,
                 "it removes more rows than there are");
    view.require(low <= most_of(rows) && high <= most_of(rows), "it pads with more rows than there are to copy");
    rows += low + high;
  }
  return with_copies(view, seen(view, self, std::move(shape)));
}

std::int64_t any_rows(std::int64_t /*rows*/) { return kMaxAdmittedRows; }
std::int64_t below(std::int64_t rows) { return rows - 1; }
std::int64_t at_most(std::int64_t rows) { return rows; }

// (self, pad, value)
Made constant(const CallView& view) {
  view.require_arguments(3);
  view.require_fits(2, view.tensor(0).dtype);
  return padded(view, -kMaxAdmittedRows, any_rows);
}

// Each spatial dimension has a pair; the first `before` dimensions have none.
Made copied(const CallView& view, std::size_t least_before, std::size_t most_before,
            std::int64_t (*most_of)(std::int64_t)) {
  const std::size_t rank = view.tensor(0, kFloats).shape.size();
  view.require(view.tensor(0).elements() > 0, "it has no rows to copy");
  const std::size_t spatial = view.integers(1, 0, kMaxAdmittedRows).size() / 2;
  view.require(spatial >= 1 && spatial <= 3 && rank >= spatial + least_before && rank <= spatial + most_before,
               "its input has an invalid number of dimensions");
  return padded(view, 0, most_of);
}

// (self, pad, mode, value)
Made pad(const CallView& view) {
  view.require_arguments(4);
  const std::string mode = view.text(2);
  if (mode == "constant") {
    if (!view.is_null(3)) view.require_fits(3, view.tensor(0).dtype);
    return padded(view, -kMaxAdmittedRows, any_rows);
  }
  view.require(view.is_null(3) || view.real(3) == 0, "its value must be 0 in this mode");
  if (mode == "reflect") return copied(view, 1, 2, below);
  if (mode == "replicate") return copied(view, 1, 2, any_rows);
  view.require(mode == "circular", "its mode must be constant, reflect, replicate or circular");
  return copied(view, 2, 2, at_most);
}

// (self, padding)
Made border(const CallView& view, std::size_t spatial, std::int64_t (*most_of)(std::int64_t)) {
  view.require_arguments(2);
  view.require(view.integers(1, 0, kMaxAdmittedRows).size() == 2 * spatial,
               "its list must have a pair for each dimension");
  return copied(view, 1, 2, most_of);
}

}  // namespace

void add_border_validators(Operators& operators) {
  operators["aten::pad"] = {pad, true};
  operators["aten::constant_pad_nd"] = {constant, true};
  for (std::size_t spatial = 1; spatial <= 3; ++spatial) {
    const std::string dims = std::to_string(spatial) + "d";
    operators["aten::reflection_pad" + dims] = {[=](const CallView& view) { return border(view, spatial, below); }};
    operators["aten::replication_pad" + dims] = {[=](const CallView& view) { return border(view, spatial, any_rows); }};
  }
}

}  // namespace atl::infer::safety
