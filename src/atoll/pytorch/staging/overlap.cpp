// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/overlap.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace atl::pytorch {
namespace {

using ByteCount = std::uint64_t;

// A half-open range of addresses.
struct Stretch {
  ByteCount begin = 0;
  ByteCount end = 0;

  bool meets(const Stretch& other) const { return begin < other.end && other.begin < end; }
};

struct Dimension {
  ByteCount size;
  ByteCount stride;  // in bytes
};

// A tensor as contiguous runs of bytes, one for each index of the dimensions.
struct Runs {
  Stretch all;
  ByteCount length = 0;               // of a run
  std::vector<Dimension> dimensions;  // in increasing order of stride
};

Stretch range_of(const at::Tensor& tensor) {
  const auto begin = reinterpret_cast<ByteCount>(tensor.const_data_ptr());
  if (tensor.numel() == 0) return {begin, begin};
  if (tensor.is_non_overlapping_and_dense()) return {begin, begin + tensor.nbytes()};
  ByteCount last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    last += static_cast<ByteCount>((tensor.size(d) - 1) * tensor.stride(d));
  }
  return {begin, begin + (last + 1) * static_cast<ByteCount>(tensor.element_size())};
}

// Requires a tensor with elements. Leaves out dimensions that only repeat the others' memory.
Runs runs_of(const at::Tensor& tensor) {
  Runs runs{range_of(tensor), static_cast<ByteCount>(tensor.element_size()), {}};
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) == 1 || tensor.stride(d) == 0) continue;
    runs.dimensions.push_back(
        {static_cast<ByteCount>(tensor.size(d)), static_cast<ByteCount>(tensor.stride(d) * tensor.element_size())});
  }
  std::sort(runs.dimensions.begin(), runs.dimensions.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  auto inner = runs.dimensions.begin();
  for (; inner != runs.dimensions.end() && inner->stride == runs.length; ++inner) runs.length *= inner->size;
  runs.dimensions.erase(runs.dimensions.begin(), inner);
  return runs;
}

// Returns whether each dimension steps over everything inside it.
bool is_nested(const Runs& runs) {
  ByteCount inside = runs.length;
  for (const Dimension& each : runs.dimensions) {
    if (each.stride < inside) return false;
    inside += (each.size - 1) * each.stride;
  }
  return true;
}

// Returns the runs that intersect `part`, in order.
std::vector<Stretch> stretches(const Runs& runs, const Stretch& part) {
  std::vector<Stretch> found;
  std::vector<ByteCount> at(runs.dimensions.size());
  ByteCount begin = runs.all.begin;
  while (true) {
    const Stretch run{begin, begin + runs.length};
    if (run.meets(part)) found.push_back(run);
    std::size_t d = 0;
    for (; d < at.size(); ++d) {
      begin += runs.dimensions[d].stride;
      if (++at[d] < runs.dimensions[d].size) break;
      begin -= runs.dimensions[d].size * runs.dimensions[d].stride;
      at[d] = 0;
    }
    if (d == at.size()) break;
  }
  std::sort(found.begin(), found.end(), [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; });
  return found;
}

// Returns whether both repeat with one period and do not overlap within it, as columns of a matrix do.
bool are_interleaved(const Runs& a, const Runs& b) {
  ByteCount period = 0;
  for (const Runs* each : {&a, &b}) {
    for (const Dimension& dimension : each->dimensions) period = std::gcd(period, dimension.stride);
  }
  if (period == 0) return false;
  const ByteCount ahead =
      (b.all.begin % period + period - a.all.begin % period) % period;  // from the start of a's run to that of b's
  return ahead >= a.length && ahead + b.length <= period;
}

}  // namespace

bool overlaps_itself(const at::Tensor& tensor) {
  if (tensor.numel() < 2 || tensor.is_non_overlapping_and_dense()) return false;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1 && tensor.stride(d) == 0) return true;
  }
  const Runs runs = runs_of(tensor);
  if (is_nested(runs)) return false;
  const auto all = stretches(runs, runs.all);
  return std::adjacent_find(all.begin(), all.end(),
                            [](const Stretch& one, const Stretch& next) { return one.meets(next); }) != all.end();
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const Stretch range_a = range_of(a);
  const Stretch range_b = range_of(b);
  if (!range_a.meets(range_b)) return false;
  if (a.is_non_overlapping_and_dense() && b.is_non_overlapping_and_dense()) return true;
  const Runs runs_a = runs_of(a);
  const Runs runs_b = runs_of(b);
  if (are_interleaved(runs_a, runs_b)) return false;
  const auto in_a = stretches(runs_a, range_b);
  const auto in_b = stretches(runs_b, range_a);
  auto next = in_b.begin();
  for (const Stretch& run : in_a) {
    while (next != in_b.end() && next->end <= run.begin) ++next;
    if (next != in_b.end() && next->meets(run)) return true;
  }
  return false;
}

std::optional<std::pair<std::size_t, std::size_t>> overlapping_pair(const std::vector<at::Tensor>& tensors) {
  if (tensors.size() < 2) return std::nullopt;
  std::vector<std::pair<Stretch, std::size_t>> places;
  places.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel() > 0) places.emplace_back(range_of(tensors[i]), i);
  }
  std::sort(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
  for (auto one = places.begin(); one != places.end(); ++one) {
    for (auto other = one + 1; other != places.end() && other->first.begin < one->first.end; ++other) {
      if (overlap(tensors[one->second], tensors[other->second])) return std::minmax(one->second, other->second);
    }
  }
  return std::nullopt;
}

}  // namespace atl::pytorch
