// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "atoll/plan/numbers.h"
#include "atoll/plan/simulate/engine.h"
#include "atoll/plan/text.h"

namespace atl::plan::simulated {

// Describes what the rank waits for, which `other` would have to do; -1 if no rank can do it.
std::string Engine::waits(int rank, int& other) {
  Lane& its = lane(rank);
  Line& pipeline = line(its.pipeline);
  const std::string name = "rank " + std::to_string(rank) + " (pipeline " + std::to_string(its.pipeline) + ")";
  if (its.next < its.actions->size()) {
    const Action& action = (*its.actions)[its.next];
    const std::string waiting = name + " waits at " + to_text(action) + " for ";
    const Unit& unit = unit_of(its, action);
    if (action.work != Work::kForward && unit.forward < 0) {
      other = rank;
      return waiting + to_text({Work::kForward, action.stage, action.micro_batch}) +
             ", which comes later in its actions";
    }
    if (action.work == Work::kWeight && unit.backward < 0) {
      other = rank;
      return waiting + to_text({Work::kInput, action.stage, action.micro_batch}) + ", which comes later in its actions";
    }
    const Edge* edge = edge_of(its, action);
    if (edge != nullptr && edge->arrived < 0) {
      const bool is_forward = action.work == Work::kForward;
      const int stage = action.stage + (is_forward ? -1 : 1);
      other = pipeline.ranks[as_index(stage)];
      return waiting + (is_forward ? "the output" : "the gradient") + " of stage " + std::to_string(stage) +
             " from rank " + std::to_string(other);
    }
  }
  if (its.sends > 0) {
    // Finds the first offered input that no rank has received.
    for (std::size_t i = 0; i < pipeline.units.size(); ++i) {
      const auto stage = static_cast<int>(i / (pipeline.units.size() / pipeline.ranks.size()));
      for (const Edge* edge : {&pipeline.units[i].input, &pipeline.units[i].gradient}) {
        if (edge->offered < 0 || edge->arrived >= 0 || events_[as_index(edge->offered)].rank != rank) continue;
        other = pipeline.ranks[as_index(stage)];
        return name + " waits until rank " + std::to_string(other) + " receives what it sends to stage " +
               std::to_string(stage);
      }
    }
  }
  for (const Group& group : groups_) {
    if (group.phases.empty() || std::find(group.ranks.begin(), group.ranks.end(), rank) == group.ranks.end()) continue;
    for (const int member : group.ranks) {
      if (member == rank || lane(member).next == lane(member).actions->size()) continue;
      other = member;
      return name + " waits for gradients of rank " + std::to_string(other);
    }
  }
  for (int each = 0; each < static_cast<int>(lanes_.size()); ++each) {
    if (lane(each).pipeline >= 0 && !lane(each).is_done && lane(each).next < lane(each).actions->size()) other = each;
  }
  return name + " waits for the other ranks";
}

void Engine::stuck() {
  int rank = 0;
  while (lane(rank).pipeline < 0 || lane(rank).is_done) ++rank;
  std::vector<int> ranks;
  std::vector<std::string> reasons;
  while (rank >= 0 && std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) {
    ranks.push_back(rank);
    int other = -1;
    reasons.push_back(waits(rank, other));
    rank = other;
  }
  // Ranks before the cycle only wait for it.
  const auto first = rank < 0 ? 0 : std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  constexpr std::ptrdiff_t kMax = 8;
  std::string message = "the actions deadlock after " + number(now_) + " s: ";
  for (auto i = first; i < static_cast<std::ptrdiff_t>(reasons.size()) && i < first + kMax; ++i) {
    message.append(i > first ? "; " : "").append(reasons[static_cast<std::size_t>(i)]);
  }
  if (static_cast<std::ptrdiff_t>(reasons.size()) > first + kMax) message.append("; and so on around the cycle");
  refuse(message + ". Change the order of these actions");
}

}  // namespace atl::plan::simulated
