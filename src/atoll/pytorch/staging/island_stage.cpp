// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/island_stage.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <utility>

#include "atoll/collectives/schedule/chunks.h"
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

std::optional<IslandStage::Own> own_part(const collectives::Call& call, int rank) {
  const auto own = static_cast<std::size_t>(rank);
  if (call.operation == Operation::kAllToAll) return IslandStage::Own{own, own};
  if (call.root != rank) return std::nullopt;
  if (call.operation == Operation::kGather) return IslandStage::Own{0, own};
  if (call.operation == Operation::kScatter) return IslandStage::Own{own, 0};
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

IslandStage::IslandStage(const StagingContext& context, const Operands& operands, const collectives::Call& call)
    : context_(context), operands_(operands), call_(call), own_(own_part(call, context.rank)) {}

const std::vector<int>& IslandStage::island() const { return context_.topology->island_with(context_.rank); }

IslandStage::Part IslandStage::part_of(std::uint64_t bytes) const {
  Part part;
  part.elements = bytes / element_bytes();
  part.each = collectives::led_elements(part.elements, element_bytes(), island().size(), context_.limits);
  part.begin = std::min(part.elements,
                        part.each * static_cast<std::uint64_t>(context_.topology->place_in_island(context_.rank)));
  part.end = std::min(part.elements, part.begin + part.each);
  return part;
}

Range IslandStage::range(Space space, std::size_t segment, std::uint64_t begin, std::uint64_t end) const {
  return {space, static_cast<std::uint32_t>(segment), begin * element_bytes(), (end - begin) * element_bytes()};
}

std::vector<IslandStage::Copy> IslandStage::fold(LibraryOperations& operations) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const auto root = static_cast<std::size_t>(std::max(0, call_.root));
  const bool is_root = call_.root == context_.rank;
  if (call_.operation == Operation::kBroadcast) {
    if (is_root) add_whole_input(0);
  } else if (!context_.library || call_.operation == Operation::kAllGather) {
    for (std::size_t segment = 0; segment < call_.input.size(); ++segment) {
      if (!own_ || own_->input != segment) add_whole_input(segment);
    }
  } else if (call_.operation == Operation::kReduceScatter) {
    for (std::size_t segment = 0; segment < call_.input.size(); ++segment) {
      if (!is_in_island(segment)) fold_part(segment, operations);
    }
    fold_island_segments(operations);
  } else if (call_.operation == Operation::kReduce && is_in_island(root)) {
    fold_to(0, call_.root, operations);
  } else {
    fold_part(0, operations);
  }
  return std::move(copies_);
}

void IslandStage::add_whole_input(std::size_t segment) {
  const Segment& all = input(segment);
  if (all.bytes > 0) {
    copies_.push_back({{Space::kInput, static_cast<std::uint32_t>(segment), 0, all.bytes}, operands_.bytes_of(all)});
  }
}

std::optional<std::pair<at::Tensor, at::Tensor>> IslandStage::own_copy() const {
  if (!own_) return std::nullopt;
  const Segment& from = input(own_->input);
  const Segment& to = output(own_->output);
  if (from.data == to.data || from.bytes == 0) return std::nullopt;
  return std::pair(operands_.bytes_of(from), operands_.bytes_of(to));
}

// The values in their type, multiplied if the operation has a factor.
at::Tensor IslandStage::values_of(std::size_t segment) const {
  const at::Tensor values = operands_.bytes_of(input(segment)).view(scalar_type(call_.dtype));
  return call_.reduce_op == ReduceOp::kPremulSum ? values.mul(call_.factor) : values;
}

at::Tensor IslandStage::own_copy_of(std::size_t segment) const {
  const at::Tensor values = values_of(segment);
  return call_.reduce_op == ReduceOp::kPremulSum ? values : values.clone();
}

void IslandStage::fold_part(std::size_t segment, LibraryOperations& operations) {
  const Part part = part_of(input(segment).bytes);
  if (part.elements == 0) return;
  if (part.each == part.elements) return fold_to(segment, island().front(), operations);
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
  options.timeout = context_.timeout;
  options.reduceOp = c10d_op(call_.reduce_op);
  operations.issue([&] { return context_.library->in()._reduce_scatter_base(shard, values, options); });
  if (part.end == part.begin) {
    kept_.push_back(shard);
    return;
  }
  copies_.push_back({range(Space::kInput, segment, part.begin, part.end),
                     shard.narrow(0, 0, as_size(part.end - part.begin)).view(at::kByte)});
}

// Folds the island's contributions to a whole segment on one rank.
void IslandStage::fold_to(std::size_t segment, int rank, LibraryOperations& operations) {
  if (input(segment).bytes == 0) return;
  std::vector<at::Tensor> values{own_copy_of(segment)};
  c10d::ReduceOptions options;
  options.timeout = context_.timeout;
  options.reduceOp = c10d_op(call_.reduce_op);
  options.rootRank = context_.topology->place_in_island(rank);
  operations.issue([&] { return context_.library->in().reduce(values, options); });
  kept_.push_back(values[0]);
  if (rank != context_.rank) return;
  copies_.push_back(
      {{Space::kInput, static_cast<std::uint32_t>(segment), 0, input(segment).bytes}, values[0].view(at::kByte)});
}

bool IslandStage::island_segments_are_equal(const std::vector<Segment>& segments) const {
  const std::uint64_t bytes = segments[static_cast<std::size_t>(island().front())].bytes;
  return bytes > 0 && std::all_of(island().begin(), island().end(),
                                  [&](int rank) { return segments[static_cast<std::size_t>(rank)].bytes == bytes; });
}

// reduce_scatter: folds the segments that belong to ranks of this island.
void IslandStage::fold_island_segments(LibraryOperations& operations) {
  if (!island_segments_are_equal(call_.input)) {
    for (const int rank : island()) fold_to(static_cast<std::size_t>(rank), rank, operations);
    return;
  }
  std::vector<at::Tensor> list;
  for (const int rank : island()) list.push_back(values_of(static_cast<std::size_t>(rank)));
  at::Tensor values = at::cat(list);
  at::Tensor own = at::empty({list[0].numel()}, values.options());
  c10d::ReduceScatterOptions options;
  options.timeout = context_.timeout;
  options.reduceOp = c10d_op(call_.reduce_op);
  operations.issue([&] { return context_.library->in()._reduce_scatter_base(own, values, options); });
  kept_.push_back(values);
  const auto segment = static_cast<std::size_t>(context_.rank);
  copies_.push_back(
      {{Space::kInput, static_cast<std::uint32_t>(segment), 0, input(segment).bytes}, own.view(at::kByte)});
}

std::vector<IslandStage::Copy> IslandStage::place_results() {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  copies_.clear();
  const auto own = static_cast<std::size_t>(context_.rank);
  const bool gathers = call_.operation == Operation::kAllGather;
  for (std::size_t segment = 0; segment < call_.output.size(); ++segment) {
    if (output(segment).bytes == 0 || (own_ && own_->output == segment)) continue;
    if (call_.operation == Operation::kBroadcast && call_.root == context_.rank) continue;
    if (gathers && segment == own && input(0).data == output(segment).data) continue;
    const bool comes_whole =
        !context_.library || call_.operation == Operation::kReduceScatter || call_.operation == Operation::kReduce;
    if (comes_whole) {
      add_whole_output(segment);
    } else if (gathers ? !is_in_island(segment)
                       : call_.root < 0 || !is_in_island(static_cast<std::size_t>(call_.root))) {
      add_led_output(segment);
    }
  }
  return std::move(copies_);
}

void IslandStage::add_whole_output(std::size_t segment) {
  const Segment& all = output(segment);
  copies_.push_back({{Space::kOutput, static_cast<std::uint32_t>(segment), 0, all.bytes}, operands_.bytes_of(all)});
}

void IslandStage::add_led_output(std::size_t segment) {
  const Part part = part_of(output(segment).bytes);
  spreads_.push_back({segment, {}});
  if (part.each == part.elements) {
    if (context_.topology->place_in_island(context_.rank) == 0) add_whole_output(segment);
    return;
  }
  const at::Tensor all = operands_.bytes_of(output(segment));
  at::Tensor shard = at::empty({as_size(part.each * element_bytes())}, all.options());
  spreads_.back().shard = shard;
  if (part.end == part.begin) return;
  const Range mine = range(Space::kOutput, segment, part.begin, part.end);
  copies_.push_back({mine, shard.narrow(0, 0, as_size(mine.bytes))});
}

void IslandStage::spread(LibraryOperations& operations) {
  if (!context_.library) return;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (const Spread& part : spreads_) spread_part(part, operations);
  if (call_.operation == Operation::kAllGather) spread_island_segments(operations);
  if (call_.operation == Operation::kBroadcast && is_in_island(static_cast<std::size_t>(call_.root)) &&
      output(0).bytes > 0) {
    broadcast(operands_.bytes_of(output(0)), context_.topology->place_in_island(call_.root), operations);
  }
}

void IslandStage::broadcast(const at::Tensor& bytes, int place, LibraryOperations& operations) {
  std::vector<at::Tensor> list{bytes};
  c10d::BroadcastOptions options;
  options.timeout = context_.timeout;
  options.rootRank = place;
  operations.issue([&] { return context_.library->out().broadcast(list, options); });
}

c10d::AllgatherOptions IslandStage::gathering() const {
  c10d::AllgatherOptions options;
  options.timeout = context_.timeout;
  return options;
}

void IslandStage::spread_part(const Spread& part, LibraryOperations& operations) {
  at::Tensor all = operands_.bytes_of(output(part.segment));
  if (!part.shard.defined()) return broadcast(all, 0, operations);
  at::Tensor shard = part.shard;
  const std::int64_t padded = shard.numel() * as_size(island().size());
  if (padded == all.numel()) {
    operations.issue([&] { return context_.library->out()._allgather_base(all, shard, gathering()); });
    return;
  }
  at::Tensor larger = at::empty({padded}, all.options());
  operations.issue([&] { return context_.library->out()._allgather_base(larger, shard, gathering()); },
                   [all, larger] { all.copy_(larger.narrow(0, 0, all.numel())); });
}

// all_gather: the contributions of this island's ranks do not cross the bridge.
void IslandStage::spread_island_segments(LibraryOperations& operations) {
  const auto own = static_cast<std::size_t>(context_.rank);
  at::Tensor mine = operands_.bytes_of(input(0));
  if (!island_segments_are_equal(call_.output)) {
    if (input(0).data != output(own).data && input(0).bytes > 0) operands_.bytes_of(output(own)).copy_(mine);
    for (const int rank : island()) {
      const Segment& segment = output(static_cast<std::size_t>(rank));
      if (segment.bytes > 0)
        broadcast(operands_.bytes_of(segment), context_.topology->place_in_island(rank), operations);
    }
    return;
  }
  at::Tensor all = at::empty({mine.numel() * as_size(island().size())}, mine.options());
  std::vector<at::Tensor> places;
  for (const int rank : island()) places.push_back(operands_.bytes_of(output(static_cast<std::size_t>(rank))));
  operations.issue([&] { return context_.library->out()._allgather_base(all, mine, gathering()); },
                   [all, places] {
                     std::int64_t begin = 0;
                     for (const at::Tensor& place : places) {
                       place.copy_(all.narrow(0, begin, place.numel()));
                       begin += place.numel();
                     }
                   });
}

}  // namespace atl::pytorch
