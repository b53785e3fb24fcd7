// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "atoll/infer/operators/operators.h"
#include "atoll/infer/operators/row_rules.h"

// Operators that merge or divide dimensions of the same elements.
namespace atl::infer::operators {
namespace {

std::int64_t size_between(const Shape& shape, std::size_t begin, std::size_t end) {
  return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(begin),
                         shape.begin() + static_cast<std::ptrdiff_t>(end), std::int64_t{1}, std::multiplies<>());
}

// Sizes for `elements` elements; one of them may be -1, which is computed from the others.
Shape completed(const ArgumentReader& reader, Shape sizes, std::int64_t elements) {
  const auto open = std::find(sizes.begin(), sizes.end(), -1);
  if (open != sizes.end()) {
    *open = 1;
    reader.require(std::find(sizes.begin(), sizes.end(), -1) == sizes.end(), "only one of its sizes may be -1");
    const std::int64_t known = Tensor{Dtype::kBool, reader.bounded(sizes)}.elements();
    reader.require(known > 0 && elements % known == 0, "its sizes do not divide its number of elements");
    *open = elements / known;
  }
  Tensor made{Dtype::kBool, reader.bounded(std::move(sizes))};
  reader.require(made.elements() == elements, "its sizes do not match its number of elements");
  return made.shape;
}

// The shape of a call's result, and the argument that has sizes of it: those from dimension `first` on.
struct Viewed {
  Shape shape;
  std::size_t argument = 0;  // 0: none
  int first = 0;
  int count = 0;
};

// (self, size)
Viewed read_reshape(const ArgumentReader& reader) {
  reader.require_arguments(2);
  const Tensor& self = reader.tensor(0);
  Shape shape = completed(reader, reader.integers(1, -1, kMaxAdmittedRows), self.elements());
  const int rank = static_cast<int>(shape.size());
  return {std::move(shape), 1, 0, rank};
}

// (self, start_dim, end_dim)
Viewed read_flatten(const ArgumentReader& reader) {
  reader.require_arguments(3);
  const Shape& self = reader.tensor(0).shape;
  const int first = reader.dim(1, self.size());
  const int end = reader.dim(2, self.size());
  reader.require(first <= end, "its first dimension must not be after its last one");
  Viewed viewed;
  viewed.shape.assign(self.begin(), self.begin() + first);
  viewed.shape.push_back(size_between(self, static_cast<std::size_t>(first), static_cast<std::size_t>(end) + 1));
  viewed.shape.insert(viewed.shape.end(), self.begin() + end + 1, self.end());
  return viewed;
}

// (self, dim, sizes)
Viewed read_unflatten(const ArgumentReader& reader) {
  reader.require_arguments(3);
  const Shape& self = reader.tensor(0).shape;
  const int dim = reader.dim(1, self.size());
  const Ints sizes = reader.integers(2, -1, kMaxAdmittedRows);
  reader.require(!sizes.empty(), "it lacks sizes");
  const Shape parts = completed(reader, sizes, at(self, dim));
  Viewed viewed{{self.begin(), self.begin() + dim}, 2, dim, static_cast<int>(parts.size())};
  viewed.shape.insert(viewed.shape.end(), parts.begin(), parts.end());
  viewed.shape.insert(viewed.shape.end(), self.begin() + dim + 1, self.end());
  return viewed;
}

// If equally many elements precede both dimensions, a row of one is a number of whole rows of the other, or a part of
// one.
struct Match {
  int dim;  // in the operand
  std::int64_t times;
  std::int64_t over;
};

std::optional<Match> match(const Shape& from, const Shape& to, int output_dim) {
  const auto o = static_cast<std::size_t>(output_dim);
  const std::int64_t elements = size_between(from, 0, from.size());
  if (elements == 0 || elements != size_between(to, 0, to.size())) return std::nullopt;
  const std::int64_t before = size_between(to, 0, o);
  const std::int64_t below = size_between(to, o + 1, to.size());  // elements of a row
  std::optional<Match> found;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (size_between(from, 0, i) != before) continue;
    const std::int64_t mine = size_between(from, i + 1, from.size());
    if (mine == below) return Match{static_cast<int>(i), 1, 1};
    // Of dimensions that begin at the same element, all but the last have one row.
    if (from[i] == 1 || to[o] == 1) continue;
    if (below % mine == 0) found = Match{static_cast<int>(i), below / mine, 1};
    if (mine % below == 0) found = Match{static_cast<int>(i), 1, mine / below};
  }
  return found;
}

// The rows that a slice of a scaled operand makes, and those of them that are kept.
std::int64_t cut_scaled(const NodeSplit& split, Region rows, SlicedCall& call) {
  const auto* scale = std::get_if<maps::Scale>(&split.operands[0].map);
  if (scale == nullptr) return rows.size();
  const Region read = call.operands[0].rows;
  const std::int64_t begin = read.begin * scale->over / scale->times;
  call.keep = {rows.begin - begin, rows.end - begin};
  return read.size() * scale->over / scale->times;
}

template <typename Read>
Operator view_operator(Read read) {
  Rule rule;
  rule.split = [read](const NodeView& view, int output_dim) -> std::optional<NodeSplit> {
    if (view.output_shape() != read(view).shape) return std::nullopt;
    const auto found = match(view.shape(0), view.output_shape(), output_dim);
    if (!found) return std::nullopt;
    const bool same = found->times == 1 && found->over == 1;
    NodeSplit split = whole(view, same ? Locality::kElement : Locality::kBlock);
    if (same) {
      follow(split, 0, found->dim, maps::Identity{});
    } else {
      follow(split, 0, found->dim, maps::Scale{found->times, found->over});
    }
    return split;
  };
  rule.slice = [read](const NodeView& view, const NodeSplit& split, int output_dim, Region rows) {
    SlicedCall call = call_by_rows(view, split, rows);
    const std::int64_t made = cut_scaled(split, rows, call);
    const Viewed viewed = read(view);
    if (output_dim >= viewed.first && output_dim < viewed.first + viewed.count) {
      const auto begin = viewed.shape.begin() + viewed.first;
      call.changes.push_back(
          {viewed.argument, with_rows({begin, begin + viewed.count}, output_dim - viewed.first, made)});
    }
    return call;
  };
  return {[read](const CallView& view) { return with_copies(view, seen(view, view.tensor(0), read(view).shape)); },
          std::move(rule), true};
}

// (self, factor): `factor` * `factor` channels become as many places of one channel, or the reverse.
struct Shuffle {
  std::int64_t factor = 1;
  Shape made;
};

Shuffle read_shuffle(const ArgumentReader& reader, bool finer) {
  reader.require_arguments(2);
  Shuffle shuffle{reader.integer(1, 1, kMaxStep), reader.tensor(0).shape};
  const std::int64_t factor = shuffle.factor;
  Shape& shape = shuffle.made;
  const std::size_t rank = shape.size();
  reader.require(rank >= 3, "it has no channels");
  std::int64_t& channels = shape[rank - 3];
  if (finer) {
    reader.require(channels % (factor * factor) == 0, "its factor does not divide its channels");
    channels /= factor * factor;
  } else {
    reader.require(channels <= kMaxAdmittedRows / (factor * factor), "it makes too many channels");
    channels *= factor * factor;
  }
  for (std::size_t i = rank - 2; i < rank; ++i) {
    reader.require(finer ? shape[i] <= kMaxAdmittedRows / factor : shape[i] % factor == 0,
                   "its factor does not divide its rows");
    shape[i] = finer ? shape[i] * factor : shape[i] / factor;
  }
  return shuffle;
}

SlicedCall slice_shuffle(const NodeView& view, const NodeSplit& split, int /*output_dim*/, Region rows) {
  SlicedCall call = call_by_rows(view, split, rows);
  cut_scaled(split, rows, call);
  return call;
}

Operator shuffle_operator(bool finer) {
  Rule rule;
  rule.split = [finer](const NodeView& view, int output_dim) -> std::optional<NodeSplit> {
    const Shuffle shuffle = read_shuffle(view, finer);
    const int rank = view.output_rank();
    if (view.output_shape() != shuffle.made || output_dim == rank - 3) return std::nullopt;
    if (output_dim < rank - 3) return same_rows(view, Locality::kElement, output_dim, output_dim);
    return block_rows(view, output_dim, finer ? maps::Scale{1, shuffle.factor} : maps::Scale{shuffle.factor, 1});
  };
  rule.slice = slice_shuffle;
  return {[finer](const CallView& view) {
            return with_copies(view, seen(view, view.tensor(0), read_shuffle(view, finer).made));
          },
          std::move(rule)};
}

// (self, dimension, size, step): windows, as a new last dimension.
Made unfold(const CallView& view) {
  view.require_arguments(4);
  Shape shape = view.tensor(0).shape;
  const auto dim = static_cast<std::size_t>(view.dim(1, shape.size()));
  const std::int64_t size = view.integer(2, 1, kMaxAdmittedRows);
  shape[dim] = window_rows(view, shape[dim], 0, size, view.integer(3, 1, kMaxAdmittedRows), 1);
  shape.push_back(size);
  return seen(view, view.tensor(0), std::move(shape));
}

}  // namespace

void add_views(Table& table) {
  for (const char* name : {"aten::view", "aten::_unsafe_view", "aten::reshape"}) {
    table[name] = view_operator(read_reshape);
  }
  table["aten::flatten.using_ints"] = view_operator(read_flatten);
  table["aten::unflatten.int"] = view_operator(read_unflatten);
  table["aten::pixel_shuffle"] = shuffle_operator(true);
  table["aten::pixel_unshuffle"] = shuffle_operator(false);
  table["aten::unfold"] = {unfold};
}

}  // namespace atl::infer::operators
