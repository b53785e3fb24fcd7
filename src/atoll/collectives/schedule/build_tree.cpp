// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <numeric>

#include "atoll/collectives/schedule/chunks.h"
#include "atoll/collectives/schedule/tree.h"
#include "atoll/collectives/schedule/writer.h"

namespace atl::collectives {
namespace {

// Both ends of an exchange fold at once, each into the memory that the other one reads if the call is in place.
constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

struct Plan {
  const char* algorithm = "";
  std::vector<Chunk> chunks;
  bool up = false;        // contributions are folded on the way to the owner
  bool down = false;      // results travel from the owner
  bool exchange = false;  // the two subtrees of the root each have an owner, and both fold
  bool one_owner = false;
};

/// Adds one rank's steps chunk by chunk: first those on the way to the owner, then those on the way from it. For a
/// chunk, the lead of a node of the tree is the rank that acts for all ranks below the node; the owner leads every node
/// it belongs to.
class TreeBuilder {
 public:
  TreeBuilder(const Topology& topology, const Shape& shape, int rank, const Plan& plan, std::uint64_t min_lent);
  Schedule build();

 private:
  // Scratch slots for partial results of one node, each held until it was sent or folded on.
  struct Slot {
    Range range;
    Mark reader;
  };
  struct Ring {
    std::vector<Slot> slots;
    std::size_t next = 0;
  };
  // A tree as this rank sees it.
  struct View {
    View(Tree whole, const Topology& topology, int rank, bool library_inside)
        : tree(std::move(whole)), path(tree.path(rank)), position(tree.position_of(rank)), leads(path.size()) {
      end = library_inside ? island_level(topology) : path.size();
    }
    std::size_t island_level(const Topology& topology) const;
    Tree tree;
    std::vector<int> path;  // nodes with this rank, from the root
    int position;
    std::vector<int> leads;  // of the current chunk, by level of the path
    std::size_t top = 0;     // the highest level that this rank leads; path.size() if none
    std::size_t end = 0;     // levels from here on are left to the island's library
  };

  void look(View& view, const Chunk& chunk) const;
  int lead_of_child(const View& view, const Tree::Node& parent, const Tree::Node& child, int parent_lead,
                    const Chunk& chunk) const;
  void children_leads(const View& view, std::size_t level, const Chunk& chunk);
  Mark fold_up(const Chunk& chunk);
  Mark fold_node(std::size_t level, const Chunk& chunk, Range& partial, Mark ready);
  Range place_of_partial(std::size_t level, const Chunk& chunk, int lane, Slot*& slot);
  void spread_down(const Chunk& chunk, Mark ready);

  Range contribution(const Chunk& chunk) const {
    return {Space::kInput, shape_.operation == Operation::kReduceScatter ? chunk.segment : 0, chunk.offset,
            chunk.bytes};
  }
  Range result(const Chunk& chunk) const {
    return {Space::kOutput, shape_.operation == Operation::kAllGather ? chunk.segment : 0, chunk.offset, chunk.bytes};
  }
  MessagePart message(const Chunk& chunk) const { return {shape_.counts[chunk.segment], chunk.offset}; }

  const Topology& topology_;
  const Shape& shape_;
  const int rank_;
  const Plan& plan_;
  View up_;
  View down_;
  ScheduleWriter writer_;
  std::vector<Ring> rings_;  // by level of up_.path
  std::uint64_t slot_bytes_ = 0;
  bool larger_than_caches_ = false;
  std::vector<int> children_;  // leads of a node's children for the current chunk, as tree positions
  std::vector<Source> sources_;
};

TreeBuilder::TreeBuilder(const Topology& topology, const Shape& shape, int rank, const Plan& plan,
                         std::uint64_t min_lent)
    : topology_(topology),
      shape_(shape),
      rank_(rank),
      plan_(plan),
      up_(topology.flat_reduce ? Tree::flat(topology.size) : Tree::of_islands(topology), topology, rank,
          shape.library_inside),
      down_(Tree::of_islands(topology), topology, rank, shape.library_inside),
      writer_(topology, rank,
              static_cast<std::size_t>(topology.size + std::max(up_.tree.node_count(), down_.tree.node_count())),
              plan.exchange || plan.chunks.size() == 1, plan.exchange ? kNever : min_lent),
      rings_(up_.path.size()) {
  std::uint64_t total = 0;
  for (const Chunk& chunk : plan.chunks) {
    slot_bytes_ = std::max(slot_bytes_, chunk.bytes);
    total += chunk.bytes;
  }
  larger_than_caches_ = total >= kLargerThanCaches;
}

// Returns the level of the path's first node that lies within one island.
std::size_t TreeBuilder::View::island_level(const Topology& topology) const {
  std::size_t level = 0;
  const auto spans_islands = [&](const Tree::Node& node) {
    return !topology.same_island(tree.rank_at(node.begin), tree.rank_at(node.end - 1));
  };
  while (spans_islands(tree.node(path[level]))) ++level;
  return level;
}

Schedule TreeBuilder::build() {
  for (const Chunk& chunk : plan_.chunks) {
    Mark ready;
    if (plan_.up) ready = fold_up(chunk);
    if (plan_.down) spread_down(chunk, ready);
  }
  return writer_.finish(plan_.algorithm);
}

// Finds the leads of the nodes on this rank's path, and the highest level that this rank leads.
void TreeBuilder::look(View& view, const Chunk& chunk) const {
  const Tree& tree = view.tree;
  const bool inner_root = view.path.size() > 1;
  view.leads[0] = tree.position_of(chunk.owner);
  if (plan_.exchange) view.leads[0] = inner_root ? tree.node(view.path[1]).begin : view.position;
  for (std::size_t level = 1; level < view.path.size(); ++level) {
    view.leads[level] =
        lead_of_child(view, tree.node(view.path[level - 1]), tree.node(view.path[level]), view.leads[level - 1], chunk);
  }
  view.top = static_cast<std::size_t>(std::ranges::find(view.leads, view.position) - view.leads.begin());
}

int TreeBuilder::lead_of_child(const View& view, const Tree::Node& parent, const Tree::Node& child, int parent_lead,
                               const Chunk& chunk) const {
  const auto holds = [&](int position) { return position >= child.begin && position < child.end; };
  if (!chunk.leads.empty() && !holds(parent_lead)) {
    const int island = topology_.island_of[static_cast<std::size_t>(view.tree.rank_at(child.begin))];
    const int lead = view.tree.position_of(chunk.leads[static_cast<std::size_t>(island)]);
    if (holds(lead)) return lead;
  }
  return view.tree.lead_of_child(parent, child, parent_lead, {chunk.round, plan_.one_owner});
}

// Writes the leads of the children of a node that this rank leads into children_.
void TreeBuilder::children_leads(const View& view, std::size_t level, const Chunk& chunk) {
  const Tree& tree = view.tree;
  const Tree::Node& node = tree.node(view.path[level]);
  children_.clear();
  if (node.holds_ranks()) {
    for (int position = node.begin; position < node.end; ++position) children_.push_back(position);
    return;
  }
  for (const int index : node.children) {
    const Tree::Node& child = tree.node(index);
    const bool here = view.position >= child.begin && view.position < child.end;
    if (plan_.exchange && level == 0) {
      children_.push_back(here ? view.position : child.begin);
    } else {
      children_.push_back(lead_of_child(view, node, child, view.position, chunk));
    }
  }
}

// Returns the mark after the owner's fold; an empty mark on other ranks.
Mark TreeBuilder::fold_up(const Chunk& chunk) {
  look(up_, chunk);
  Range partial = contribution(chunk);
  Mark ready;
  if (up_.top > up_.end) return {};
  for (std::size_t level = up_.end; level-- > up_.top;) ready = fold_node(level, chunk, partial, ready);
  if (up_.top == up_.end) {
    const int to = up_.tree.rank_at(up_.leads[up_.end - 1]);
    const int lane = up_.end < up_.path.size() ? writer_.lane(LaneRole::kFold, up_.path[up_.end])
                                               : writer_.lane(LaneRole::kContribute, to);
    const Mark sent = writer_.send(lane, Flow::kUp, to, partial, message(chunk));
    if (shape_.operation == Operation::kAllReduce) writer_.for_result(sent);
  }
  return up_.top == 0 ? ready : Mark{};
}

// Adds the fold at a node that this rank leads. `partial` is the partial result of its own child before, and of the
// node afterwards. Unless this rank leads the parent too, the partial result is sent right after the fold.
Mark TreeBuilder::fold_node(std::size_t level, const Chunk& chunk, Range& partial, Mark ready) {
  const bool raw = up_.tree.node(up_.path[level]).holds_ranks();
  const int lane = writer_.lane(LaneRole::kFold, up_.path[level]);
  children_leads(up_, level, chunk);
  sources_.clear();
  for (const int child : children_) {
    const bool own = child == up_.position;
    sources_.push_back(own ? Source{-1, partial} : Source{up_.tree.rank_at(child), {}});
    if (!own && plan_.exchange && level == 0) {
      ready = writer_.send(lane, Flow::kUp, up_.tree.rank_at(child), partial, message(chunk), ready);
    }
  }
  Slot* slot = nullptr;
  const Range place = place_of_partial(level, chunk, lane, slot);
  Mark done = writer_.reduce(lane, sources_, place, raw, level == 0, message(chunk), ready);
  if (partial.space == Space::kScratch) {
    Ring& below = rings_[level + 1];
    below.slots[(below.next + below.slots.size() - 1) % below.slots.size()].reader = done;
  }
  if (level == up_.top && level > 0) {
    const int to = up_.tree.rank_at(up_.leads[level - 1]);
    done = writer_.send(lane, Flow::kUp, to, place, message(chunk), done);
    if (slot) slot->reader = done;
  }
  partial = place;
  return done;
}

// Returns the output if it covers the chunk, else a slot of the node's ring, once its last reader is done with it.
Range TreeBuilder::place_of_partial(std::size_t level, const Chunk& chunk, int lane, Slot*& slot) {
  const bool covers_all = shape_.operation == Operation::kAllReduce || shape_.operation == Operation::kBarrier;
  if (up_.top == 0 || covers_all) return result(chunk);
  Ring& ring = rings_[level];
  if (ring.slots.empty()) {
    // If the send follows the fold in the same lane, one slot is enough; if another lane folds on, several slots let it
    // lag behind.
    const std::size_t slots = level == 1 ? 1 : 4;
    for (std::size_t i = 0; i < slots; ++i) ring.slots.push_back({writer_.scratch(slot_bytes_), {}});
  }
  slot = &ring.slots[ring.next];
  ring.next = (ring.next + 1) % ring.slots.size();
  writer_.wait(lane, slot->reader);
  Range place = slot->range;
  place.bytes = chunk.bytes;
  return place;
}

// `ready` is the mark after the owner's fold, if there was one.
void TreeBuilder::spread_down(const Chunk& chunk, Mark ready) {
  look(down_, chunk);
  if (down_.top > down_.end) return;
  const bool owner = down_.top == 0;
  Range value = result(chunk);
  int top_lane = ready.lane;
  bool sent_on = false;
  if (!owner) {
    const int from = down_.tree.rank_at(down_.leads[down_.top - 1]);
    ready = writer_.receive(writer_.lane(LaneRole::kCollect, from), Flow::kDown, from, value, message(chunk));
  } else if (!plan_.up) {
    value = contribution(chunk);
    top_lane = writer_.lane(LaneRole::kOwn);
  }
  for (std::size_t level = down_.top; level < down_.end; ++level) {
    if (plan_.exchange && level == 0) continue;
    children_leads(down_, level, chunk);
    if (children_.size() < 2) continue;
    const int lane = level == 0 ? top_lane : writer_.lane(LaneRole::kSpread, down_.path[level]);
    for (const int child : children_) {
      if (child == down_.position) continue;
      sent_on = true;
      writer_.send(lane, Flow::kDown, down_.tree.rank_at(child), value, message(chunk), ready);
    }
  }
  if (!owner && !sent_on && larger_than_caches_) writer_.past_caches(ready);
  if (owner && shape_.operation == Operation::kAllGather && !shape_.library_inside) {
    const Mark copied = writer_.copy(top_lane, value, result(chunk));
    if (larger_than_caches_) writer_.past_caches(copied);
  }
}

Plan plan_all_reduce(const Topology& topology, const Shape& shape, const ScheduleLimits& limits) {
  const std::uint64_t element_bytes = size_of(shape.dtype);
  const std::uint64_t bytes = shape.counts[0] * element_bytes;
  Plan plan;
  plan.up = plan.down = true;
  if (topology.size > 1 && bytes > limits.small_bytes) {
    plan.algorithm = "owners";
    plan.chunks = cut_for_owners(topology, bytes, element_bytes, limits);
    return plan;
  }
  plan.exchange = topology.size == 2 || (topology.islands.size() == 2 && !topology.flat_reduce);
  plan.algorithm = plan.exchange ? "exchange" : "star";
  plan.chunks = cut_message(bytes, chunk_bytes(topology, bytes, element_bytes, limits), element_bytes, 0, 0);
  plan.one_owner = true;
  if (topology.has_leads()) {
    for (Chunk& chunk : plan.chunks) chunk.leads = first_ranks(topology);
  }
  return plan;
}

std::vector<int> ranks_of(const Topology& topology) {
  std::vector<int> ranks(static_cast<std::size_t>(topology.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Plan make_plan(const Topology& topology, const Shape& shape, const ScheduleLimits& limits) {
  if (shape.operation == Operation::kAllReduce || shape.operation == Operation::kBarrier)
    return plan_all_reduce(topology, shape, limits);
  Plan plan;
  plan.up = shape.operation == Operation::kReduceScatter || shape.operation == Operation::kReduce;
  plan.down = !plan.up;
  plan.one_owner = has_root(shape.operation);
  plan.algorithm = plan.one_owner ? "star" : "owners";
  const auto owners = plan.one_owner ? std::vector{shape.root} : ranks_of(topology);
  plan.chunks = cut_messages(topology, shape.counts, owners, size_of(shape.dtype), limits);
  return plan;
}

}  // namespace

Schedule build_tree_schedule(const Topology& topology, const Shape& shape, int rank, const ScheduleLimits& limits) {
  const Plan plan = make_plan(topology, shape, limits);
  return TreeBuilder(topology, shape, rank, plan, limits.min_lent).build();
}

}  // namespace atl::collectives
