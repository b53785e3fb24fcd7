// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/inside.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <utility>

#include "atoll/collectives/schedule/leads.h"
#include "atoll/pytorch/staging/dtype.h"

namespace atl::pytorch {

using collectives::Operation;
using collectives::Range;
using collectives::ReduceOp;
using collectives::Segment;
using collectives::Space;

namespace {

c10d::ReduceOp c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProduct: return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kMin: return c10d::ReduceOp::MIN;
    case ReduceOp::kMax: return c10d::ReduceOp::MAX;
    case ReduceOp::kBand: return c10d::ReduceOp::BAND;
    case ReduceOp::kBor: return c10d::ReduceOp::BOR;
    case ReduceOp::kBxor: return c10d::ReduceOp::BXOR;
    default: return c10d::ReduceOp::SUM;  // AVG divides at the owner, PREMUL_SUM has multiplied
  }
}

std::int64_t as_size(std::uint64_t count) { return static_cast<std::int64_t>(count); }

std::optional<Inside::Own> own_part(const collectives::Call& call, int rank) {
  const auto own = static_cast<std::size_t>(rank);
  if (call.operation == Operation::kAllToAll) return Inside::Own{own, own};
  if (call.root != rank) return std::nullopt;
  if (call.operation == Operation::kGather) return Inside::Own{0, own};
  if (call.operation == Operation::kScatter) return Inside::Own{own, 0};
  return std::nullopt;
}

}  // namespace

LibraryParts library_parts_of(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce: return {true, true};
    case Operation::kReduce:
    case Operation::kReduceScatter: return {true, false};
    case Operation::kBroadcast:
    case Operation::kAllGather: return {false, true};
    default: return {};
  }
}

Inside::Inside(const Surroundings& around, const Operands& operands, const collectives::Call& call)
    : around_(around), operands_(operands), call_(call), own_(own_part(call, around.rank)) {}

const std::vector<int>& Inside::island() const { return around_.topology->island_with(around_.rank); }

Inside::Part Inside::part_of(std::uint64_t bytes) const {
  Part part;
  part.elements = bytes / element_bytes();
  part.each = collectives::led_elements(part.elements, element_bytes(), island().size(), around_.limits);
  part.begin =
      std::min(part.elements, part.each * static_cast<std::uint64_t>(around_.topology->place_in_island(around_.rank)));
  part.end = std::min(part.elements, part.begin + part.each);
  return part;
}

Range Inside::range(Space space, std::size_t segment, std::uint64_t begin, std::uint64_t end) const {
  return {space, static_cast<std::uint32_t>(segment), begin * element_bytes(), (end - begin) * element_bytes()};
}

std::vector<Inside::Copy> Inside::bring(Pending& pending) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const auto root = static_cast<std::size_t>(std::max(0, call_.root));
  const bool is_root = call_.root == around_.rank;
  if (call_.operation == Operation::kBroadcast) {
    if (is_root) bring_whole(0);
  } else if (!around_.library || call_.operation == Operation::kAllGather) {
    for (std::size_t segment = 0; segment < call_.input.size(); ++segment) {
      if (!own_ || own_->input != segment) bring_whole(segment);
    }
  } else if (call_.operation == Operation::kReduceScatter) {
    for (std::size_t segment = 0; segment < call_.input.size(); ++segment) {
      if (!is_near(segment)) bring_part(segment, pending);
    }
    fold_near_segments(pending);
  } else if (call_.operation == Operation::kReduce && is_near(root)) {
    fold_to(0, call_.root, pending);
  } else {
    bring_part(0, pending);
  }
  return std::move(copies_);
}

void Inside::bring_whole(std::size_t segment) {
  const Segment& all = input(segment);
  if (all.bytes > 0) {
    copies_.push_back({{Space::kInput, static_cast<std::uint32_t>(segment), 0, all.bytes}, operands_.bytes_of(all)});
  }
}

std::optional<std::pair<at::Tensor, at::Tensor>> Inside::own_copy() const {
  if (!own_) return std::nullopt;
  const Segment& from = input(own_->input);
  const Segment& to = output(own_->output);
  if (from.data == to.data || from.bytes == 0) return std::nullopt;
  return std::pair(operands_.bytes_of(from), operands_.bytes_of(to));
}

// Typed, and multiplied where the operation says so.
at::Tensor Inside::values_of(std::size_t segment) const {
  const at::Tensor values = operands_.bytes_of(input(segment)).view(scalar_type(call_.dtype));
  return call_.reduce_op == ReduceOp::kPremulSum ? values.mul(call_.factor) : values;
}

at::Tensor Inside::own_copy_of(std::size_t segment) const {
  const at::Tensor values = values_of(segment);
  return call_.reduce_op == ReduceOp::kPremulSum ? values : values.clone();
}

void Inside::bring_part(std::size_t segment, Pending& pending) {
  const Part part = part_of(input(segment).bytes);
  if (part.elements == 0) return;
  if (part.each == part.elements) return fold_to(segment, island().front(), pending);
  const std::uint64_t padded = part.each * island().size();
  at::Tensor values = values_of(segment);
  if (padded > part.elements) {
    const at::Tensor larger = at::zeros({as_size(padded)}, values.options());
    larger.narrow(0, 0, as_size(part.elements)).copy_(values);
    values = larger;
  }
  at::Tensor shard = at::empty({as_size(part.each)}, values.options());
  kept_.push_back(values);
  c10d::ReduceScatterOptions options;
  options.timeout = around_.timeout;
  options.reduceOp = c10d_op(call_.reduce_op);
  pending.issue([&] { return around_.library->in()._reduce_scatter_base(shard, values, options); });
  if (part.end == part.begin) {
    kept_.push_back(shard);
    return;
  }
  copies_.push_back({range(Space::kInput, segment, part.begin, part.end),
                     shard.narrow(0, 0, as_size(part.end - part.begin)).view(at::kByte)});
}

// The island's fold of a whole segment goes to one rank.
void Inside::fold_to(std::size_t segment, int rank, Pending& pending) {
  if (input(segment).bytes == 0) return;
  std::vector<at::Tensor> values{own_copy_of(segment)};
  c10d::ReduceOptions options;
  options.timeout = around_.timeout;
  options.reduceOp = c10d_op(call_.reduce_op);
  options.rootRank = around_.topology->place_in_island(rank);
  pending.issue([&] { return around_.library->in().reduce(values, options); });
  kept_.push_back(values[0]);
  if (rank != around_.rank) return;
  copies_.push_back(
      {{Space::kInput, static_cast<std::uint32_t>(segment), 0, input(segment).bytes}, values[0].view(at::kByte)});
}

bool Inside::near_segments_are_equal(const std::vector<Segment>& segments) const {
  const std::uint64_t bytes = segments[static_cast<std::size_t>(island().front())].bytes;
  return bytes > 0 && std::all_of(island().begin(), island().end(),
                                  [&](int rank) { return segments[static_cast<std::size_t>(rank)].bytes == bytes; });
}

// reduce_scatter: of the segments that belong to ranks of this island.
void Inside::fold_near_segments(Pending& pending) {
  if (!near_segments_are_equal(call_.input)) {
    for (const int rank : island()) fold_to(static_cast<std::size_t>(rank), rank, pending);
    return;
  }
  std::vector<at::Tensor> list;
  for (const int rank : island()) list.push_back(values_of(static_cast<std::size_t>(rank)));
  at::Tensor values = at::cat(list);
  at::Tensor own = at::empty({list[0].numel()}, values.options());
  c10d::ReduceScatterOptions options;
  options.timeout = around_.timeout;
  options.reduceOp = c10d_op(call_.reduce_op);
  pending.issue([&] { return around_.library->in()._reduce_scatter_base(own, values, options); });
  kept_.push_back(values);
  const auto segment = static_cast<std::size_t>(around_.rank);
  copies_.push_back(
      {{Space::kInput, static_cast<std::uint32_t>(segment), 0, input(segment).bytes}, own.view(at::kByte)});
}

std::vector<Inside::Copy> Inside::take() {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  copies_.clear();
  const auto own = static_cast<std::size_t>(around_.rank);
  const bool gathers = call_.operation == Operation::kAllGather;
  for (std::size_t segment = 0; segment < call_.output.size(); ++segment) {
    if (output(segment).bytes == 0 || (own_ && own_->output == segment)) continue;
    if (call_.operation == Operation::kBroadcast && call_.root == around_.rank) continue;
    if (gathers && segment == own && input(0).data == output(segment).data) continue;
    const bool comes_whole =
        !around_.library || call_.operation == Operation::kReduceScatter || call_.operation == Operation::kReduce;
    if (comes_whole) {
      take_whole(segment);
    } else if (gathers ? !is_near(segment) : call_.root < 0 || !is_near(static_cast<std::size_t>(call_.root))) {
      take_part(segment);
    }
  }
  return std::move(copies_);
}

void Inside::take_whole(std::size_t segment) {
  const Segment& all = output(segment);
  copies_.push_back({{Space::kOutput, static_cast<std::uint32_t>(segment), 0, all.bytes}, operands_.bytes_of(all)});
}

void Inside::take_part(std::size_t segment) {
  const Part part = part_of(output(segment).bytes);
  spreads_.push_back({segment, {}});
  if (part.each == part.elements) {
    if (around_.topology->place_in_island(around_.rank) == 0) take_whole(segment);
    return;
  }
  const at::Tensor all = operands_.bytes_of(output(segment));
  at::Tensor shard = at::empty({as_size(part.each * element_bytes())}, all.options());
  spreads_.back().shard = shard;
  if (part.end == part.begin) return;
  const Range mine = range(Space::kOutput, segment, part.begin, part.end);
  copies_.push_back({mine, shard.narrow(0, 0, as_size(mine.bytes))});
}

void Inside::spread(Pending& pending) {
  if (!around_.library) return;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (const Spread& part : spreads_) spread_part(part, pending);
  if (call_.operation == Operation::kAllGather) spread_near_segments(pending);
  if (call_.operation == Operation::kBroadcast && is_near(static_cast<std::size_t>(call_.root)) &&
      output(0).bytes > 0) {
    broadcast(operands_.bytes_of(output(0)), around_.topology->place_in_island(call_.root), pending);
  }
}

void Inside::broadcast(const at::Tensor& bytes, int place, Pending& pending) {
  std::vector<at::Tensor> list{bytes};
  c10d::BroadcastOptions options;
  options.timeout = around_.timeout;
  options.rootRank = place;
  pending.issue([&] { return around_.library->out().broadcast(list, options); });
}

c10d::AllgatherOptions Inside::gathering() const {
  c10d::AllgatherOptions options;
  options.timeout = around_.timeout;
  return options;
}

void Inside::spread_part(const Spread& part, Pending& pending) {
  at::Tensor all = operands_.bytes_of(output(part.segment));
  if (!part.shard.defined()) return broadcast(all, 0, pending);
  at::Tensor shard = part.shard;
  const std::int64_t padded = shard.numel() * as_size(island().size());
  if (padded == all.numel()) {
    pending.issue([&] { return around_.library->out()._allgather_base(all, shard, gathering()); });
    return;
  }
  at::Tensor larger = at::empty({padded}, all.options());
  pending.issue([&] { return around_.library->out()._allgather_base(larger, shard, gathering()); },
                [all, larger] { all.copy_(larger.narrow(0, 0, all.numel())); });
}

// all_gather: the contributions of this island's ranks need not cross anything.
void Inside::spread_near_segments(Pending& pending) {
  const auto own = static_cast<std::size_t>(around_.rank);
  at::Tensor mine = operands_.bytes_of(input(0));
  if (!near_segments_are_equal(call_.output)) {
    if (input(0).data != output(own).data && input(0).bytes > 0) operands_.bytes_of(output(own)).copy_(mine);
    for (const int rank : island()) {
      const Segment& segment = output(static_cast<std::size_t>(rank));
      if (segment.bytes > 0) broadcast(operands_.bytes_of(segment), around_.topology->place_in_island(rank), pending);
    }
    return;
  }
  at::Tensor all = at::empty({mine.numel() * as_size(island().size())}, mine.options());
  std::vector<at::Tensor> places;
  for (const int rank : island()) places.push_back(operands_.bytes_of(output(static_cast<std::size_t>(rank))));
  pending.issue([&] { return around_.library->out()._allgather_base(all, mine, gathering()); },
                [all, places] {
                  std::int64_t begin = 0;
                  for (const at::Tensor& place : places) {
                    place.copy_(all.narrow(0, begin, place.numel()));
                    begin += place.numel();
                  }
                });
}

}  // namespace atl::pytorch
