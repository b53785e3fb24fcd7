// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/region_grid.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <utility>

#include "atoll/plan/numbers.h"

namespace atl::plan {
namespace {

std::vector<std::int64_t> cuts_of(std::int64_t rows, int parts) {
  std::vector<std::int64_t> cuts;
  for (int part = 0; part <= parts; ++part) cuts.push_back((rows * part + parts / 2) / parts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

// Returns the cuts within `window` steps of `cut`, and both ends.
std::vector<bool> near(const std::vector<std::int64_t>& cuts, std::int64_t cut, int window) {
  const auto distance = [&](std::int64_t each) { return std::abs(each - cut); };
  const auto middle = std::ranges::min_element(cuts, {}, distance) - cuts.begin();
  std::vector<bool> result(cuts.size());
  for (std::size_t k = 0; k < cuts.size(); ++k) {
    result[k] = k == 0 || k + 1 == cuts.size() || std::abs(static_cast<std::ptrdiff_t>(k) - middle) <= window;
  }
  return result;
}

// Returns whether a share of the consumer's rows needs at least that share of the operand's, for the first and last
// rows.
bool is_proportional(const Operand& operand, std::int64_t made, std::int64_t rows) {
  if (!operand.needed || made == 0) return true;
  const auto is_enough = [&](std::int64_t part) {
    return operand.needed({0, part}).size() * made >= part * rows &&
           operand.needed({made - part, made}).size() * made >= part * rows;
  };
  for (std::int64_t part = 1; part < made; part += std::max<std::int64_t>(1, made / 16)) {
    if (!is_enough(part)) return false;
  }
  return is_enough(made);
}

// Returns by stage the bytes that cross the link when the operands are on one side and the exits on the other: for some
// path through, its smallest tensor.
std::vector<double> crossings(const OperatorGraph& graph, const StageChain& chain) {
  std::vector<double> width(graph.operators.size(), 0);
  for (const int input : chain.inputs) width[as_index(input)] = HUGE_VAL;
  std::vector<double> result;
  for (const Stage& stage : chain.stages) {
    for (const int v : stage.operators) {
      const Operator& made = operator_at(graph, v);
      double& widest = width[as_index(v)];
      for (const Operand& operand : made.operands) {
        const Operator& from = operator_at(graph, operand.producer);
        if (!is_proportional(operand, made.rows, from.rows)) continue;
        const double before = width[as_index(operand.producer)];
        widest = std::max(widest, std::min(before, static_cast<double>(from.bytes)));
      }
    }
    result.push_back(stage.exits.size() == 1 ? width[as_index(stage.exits.front())] : 0);
    for (const int exit : stage.exits) width[as_index(exit)] = HUGE_VAL;
  }
  return result;
}

void set_rest(const OperatorGraph& graph, const StageChain& chain, const LinkCost& link,
              const std::vector<double>& crossing, Price& price) {
  const double up = price.up / link.up_bytes_per_second;
  const double down = price.down / link.down_bytes_per_second;
  const Stage& last = chain.stages.back();
  double robot = 0;
  double server = last.exits.size() == 1 ? down * exit_bytes(graph, last) : 0;
  price.rest.assign(chain.stages.size() + 1, 0);
  for (std::size_t k = chain.stages.size(); k-- > 0;) {
    double on_robot = 0;
    double on_server = 0;
    double on_either = 0;
    for (const int v : chain.stages[k].operators) {
      const Operator& made = operator_at(graph, v);
      const double by_robot = price.robot * made.robot.seconds(made.rows);
      const double by_server = price.server * made.server.seconds(made.rows);
      on_robot += by_robot;
      on_server += by_server;
      on_either += std::min(by_robot, by_server);
    }
    if (chain.stages[k].operators.size() > 1) on_robot = on_server = on_either;
    const double from_robot = std::min(on_robot + robot, up * crossing[k] + on_server + server);
    const double from_server = std::min(on_server + server, down * crossing[k] + on_robot + robot);
    robot = from_robot;
    server = from_server;
    price.rest[k] = std::min(robot, server);
  }
  price.whole = robot;
}

}  // namespace

std::vector<int> meeting_stages(const OperatorGraph& graph, const StageChain& chain, const std::vector<Share>& shares,
                                int most) {
  const std::size_t count = chain.stages.size();
  std::vector<double> bytes;
  for (const Stage& stage : chain.stages) bytes.push_back(exit_bytes(graph, stage));
  std::vector<double> work(count, 1.0 / static_cast<double>(count));
  const double seconds = graph.robot_seconds();
  for (std::size_t k = 0; k < count && seconds > 0; ++k) {
    for (const int v : chain.stages[k].operators) {
      work[k] += operator_at(graph, v).robot.seconds(operator_at(graph, v).rows) / seconds;
    }
  }
  std::vector<bool> is_chosen(count, count <= as_index(std::max(most, 1)));
  is_chosen.back() = true;
  std::vector<int> smallest(static_cast<std::size_t>(std::max(most - 1, 0)), -1);
  double before = 0;
  for (std::size_t k = 0; k < count && !smallest.empty(); ++k) {
    const auto part = static_cast<std::size_t>(before / 2 * static_cast<double>(smallest.size()));
    int& chosen = smallest[std::min(part, smallest.size() - 1)];
    if (chosen < 0 || bytes[k] < bytes[as_index(chosen)]) chosen = static_cast<int>(k);
    before += work[k];
  }
  for (const int k : smallest) {
    if (k >= 0) is_chosen[as_index(k)] = true;
  }
  const auto share_at = [&](std::size_t k) { return shares[as_index(chain.stages[k].exits.front())]; };
  for (std::size_t k = 0; k + 1 < count; ++k) {
    const Share here = share_at(k);
    const Share next = share_at(k + 1);
    if (here.robot.is_empty() != next.robot.is_empty() || here.server.is_empty() != next.server.is_empty()) {
      is_chosen[k] = true;
    }
    // Divided tensors up to here must be gathered here: after this one side computes everything.
    if (chain.stages[k].rows > 1 && chain.stages[k + 1].rows == 1) is_chosen[k] = true;
  }
  std::vector<int> stages;
  for (std::size_t k = 0; k < count; ++k) {
    if (is_chosen[k]) stages.push_back(static_cast<int>(k));
  }
  return stages;
}

std::vector<GridTensor> grid_of(const OperatorGraph& graph, const StageChain& chain, const std::vector<int>& stages,
                                int parts) {
  std::vector<GridTensor> tensors;
  bool is_streamable = true;
  double fixed = 0;
  std::size_t next = 0;
  for (const int stage : stages) {
    for (; next <= as_index(stage); ++next) {
      for (const int v : chain.stages[next].operators) {
        is_streamable = is_streamable && operator_at(graph, v).is_by_row();
        fixed += operator_at(graph, v).server.fixed;
      }
    }
    const Stage& made = chain.stages[as_index(stage)];
    const double bytes = exit_bytes(graph, made);
    const bool is_state = made.exits.size() == 1 && operator_at(graph, made.exits.front()).is_state;
    GridTensor tensor{stage, made.rows, bytes, cuts_of(made.rows, parts), {}, {}, is_streamable, fixed, is_state};
    tensor.may_end.assign(tensor.cuts.size(), true);
    tensor.may_begin.assign(tensor.cuts.size(), true);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void keep_near(const StageChain& chain, const std::vector<Share>& shares, int window,
               std::vector<GridTensor>& tensors) {
  for (GridTensor& tensor : tensors) {
    const int exit = chain.stages[as_index(tensor.stage)].exits.front();
    const Share& share = shares[as_index(exit)];
    const std::vector<std::int64_t> all = std::exchange(tensor.cuts, {});
    const std::vector<bool> ends = near(all, share.server.is_empty() ? 0 : share.server.end, window);
    const std::vector<bool> begins = near(all, share.robot.is_empty() ? tensor.rows : share.robot.begin, window);
    tensor.may_end.clear();
    tensor.may_begin.clear();
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (!ends[k] && !begins[k]) continue;
      tensor.cuts.push_back(all[k]);
      tensor.may_end.push_back(ends[k]);
      tensor.may_begin.push_back(begins[k]);
    }
  }
}

std::vector<Price> prices_of(const OperatorGraph& graph, const StageChain& chain, const LinkCost& link,
                             const FluidBound& bound) {
  constexpr int kSteps = 4;
  constexpr std::size_t kMax = 4;
  std::vector<Price> prices(1);
  prices[0] = {bound.robot, bound.server, bound.up, bound.down};
  for (int robot = 0; robot <= kSteps; ++robot) {
    for (int server = 0; robot + server <= kSteps; ++server) {
      const int rest = kSteps - robot - server;
      for (int up = link.is_half_duplex ? rest : 0; up <= rest; ++up) {
        const int down = link.is_half_duplex ? up : rest - up;
        prices.push_back({robot / double{kSteps}, server / double{kSteps}, up / double{kSteps}, down / double{kSteps}});
      }
    }
  }
  if (chain.stages.empty()) return {};
  const std::vector<double> crossing = crossings(graph, chain);
  for (Price& price : prices) set_rest(graph, chain, link, crossing, price);
  std::stable_sort(prices.begin(), prices.end(), [](const Price& a, const Price& b) { return a.whole > b.whole; });
  prices.resize(std::min(prices.size(), kMax));
  return prices;
}

}  // namespace atl::plan
