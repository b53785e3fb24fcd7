// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/fluid_bound.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "atoll/plan/numbers.h"

namespace atl::plan {
namespace {

constexpr int kMaxCuts = 200;
constexpr double kGap = 1e-6;
constexpr std::size_t kRows = std::tuple_size_v<Amounts>;
constexpr double kPivotRounding = 1e-12;
constexpr int kMaxPivots = 1000;
constexpr int kGreedyPivots = 100;  // then by Bland's rule, which cannot cycle

// Maximises the sum of shares x >= 0 for which each row's sum of column * x is at most 1. The columns are followed by
// one slack per row and the right-hand side; a column's last entry is its gain.
struct Tableau {
  std::vector<std::array<double, kRows + 1>> columns;
  std::array<std::size_t, kRows> basis{};

  std::size_t slack(std::size_t row) const { return columns.size() - 1 - kRows + row; }

  // Returns the entering column, or the right-hand side if none gains.
  std::size_t entering(bool greedy) const {
    std::size_t chosen = columns.size() - 1;
    double most = kPivotRounding;
    for (std::size_t i = 0; i + 1 < columns.size(); ++i) {
      if (columns[i][kRows] <= most) continue;
      chosen = i;
      if (!greedy) break;
      most = columns[i][kRows];
    }
    return chosen;
  }

  // Returns the leaving row for the column, or kRows if none binds.
  std::size_t leaving(std::size_t column) const {
    std::size_t chosen = kRows;
    double least = kInfinity;
    for (std::size_t row = 0; row < kRows; ++row) {
      if (columns[column][row] <= kPivotRounding) continue;
      const double ratio = columns.back()[row] / columns[column][row];
      if (ratio > least || (ratio == least && basis[row] > basis[chosen])) continue;
      least = ratio;
      chosen = row;
    }
    return chosen;
  }

  void pivot(std::size_t column, std::size_t row) {
    const std::array<double, kRows + 1> entering_column = columns[column];
    for (auto& each : columns) {
      const double factor = each[row] / entering_column[row];
      for (std::size_t i = 0; i <= kRows; ++i) each[i] -= entering_column[i] * factor;
      each[row] = factor;
    }
    basis[row] = column;
  }
};

// Rows of an operator that some plan must compute. Rows are examined one by one only if not all are needed, because
// operators may have many.
struct Wanted {
  bool is_all = false;
  std::vector<std::int64_t> marks{};  // +1 where regions begin, -1 where they end; empty: none

  void add(Region region, std::int64_t rows) {
    is_all = is_all || region.size() == rows;
    if (is_all || region.is_empty()) return;
    if (marks.empty()) marks.assign(static_cast<std::size_t>(rows) + 1, 0);
    ++marks[static_cast<std::size_t>(region.begin)];
    --marks[static_cast<std::size_t>(region.end)];
  }

  // Returns by row whether it is needed; empty if all are.
  std::vector<char> by_row(std::int64_t rows) {
    std::vector<char> wanted;
    if (is_all) return wanted;
    wanted.assign(static_cast<std::size_t>(rows), 0);
    std::partial_sum(marks.begin(), marks.end(), marks.begin());
    for (std::size_t row = 0; row < wanted.size() && !marks.empty(); ++row) wanted[row] = marks[row] > 0 ? 1 : 0;
    return wanted;
  }
};

bool is_wanted(const std::vector<char>& wanted, std::size_t row) { return wanted.empty() || wanted[row] != 0; }

// Returns the most by which the share of a region in the consumer's rows exceeds the share of its needs in the
// operand's `rows`. The needs of a region include those of its first and its last row, because `needed` is monotonic.
double most_spared(const std::vector<Region>& needed, std::int64_t rows) {
  const auto users = static_cast<std::int64_t>(needed.size());
  std::vector<std::int64_t> begins(needed.size());  // of the next row with needs, or -1
  std::int64_t begin = -1;
  for (std::size_t row = needed.size(); row-- > 0;) {
    if (!needed[row].is_empty()) begin = needed[row].begin;
    begins[row] = begin;
  }
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::min();
  std::int64_t most = 0;       // in units of 1 / (users * rows)
  std::int64_t start = kNone;  // maximum for a first row
  std::int64_t end = -1;       // of the last row with needs
  std::int64_t idle_run = 0;
  for (std::int64_t row = 0; row < users; ++row) {
    const auto index = static_cast<std::size_t>(row);
    if (begins[index] >= 0) start = std::max(start, begins[index] * users - row * rows);
    if (needed[index].is_empty()) {
      most = std::max(most, ++idle_run * rows);
    } else {
      idle_run = 0;
      end = needed[index].end;
    }
    if (end >= 0 && start != kNone) most = std::max(most, start + (row + 1) * rows - end * users);
  }
  return static_cast<double>(most) / static_cast<double>(users * rows);
}

}  // namespace

WeightGame solve_weights(std::span<const Amounts> columns) {
  double unit = kInfinity;
  for (const Amounts& column : columns) unit = std::min(unit, *std::max_element(column.begin(), column.end()));
  if (!(unit > 0)) return {{1, 0, 0, 0}, 0};
  Tableau tableau;
  for (const Amounts& column : columns) {
    auto& scaled = tableau.columns.emplace_back();
    std::transform(column.begin(), column.end(), scaled.begin(), [&](double amount) { return amount / unit; });
    scaled[kRows] = 1;
  }
  for (std::size_t row = 0; row < kRows; ++row) {
    tableau.basis[row] = tableau.columns.size();
    tableau.columns.emplace_back()[row] = 1;
  }
  tableau.columns.push_back({1, 1, 1, 1, 0});
  for (int i = 0; i < kMaxPivots; ++i) {
    const std::size_t column = tableau.entering(i < kGreedyPivots);
    if (column + 1 == tableau.columns.size()) break;
    const std::size_t row = tableau.leaving(column);
    if (row == kRows) break;
    tableau.pivot(column, row);
  }
  WeightGame game;
  double sum = 0;
  for (std::size_t row = 0; row < kRows; ++row) {
    game.weights[row] = std::max(0.0, -tableau.columns[tableau.slack(row)][kRows]);
    sum += game.weights[row];
  }
  for (double& weight : game.weights) weight /= sum;
  game.value = unit / -tableau.columns.back()[kRows];
  return game;
}

FluidBounds::FluidBounds(const OperatorGraph& graph)
    : graph_(graph), cuts_(graph), idle_(graph.operators.size(), 0), spared_(graph.operators.size()) {
  look_at_rows();
  known_ = {cuts_.everything_on(Side::kRobot).totals, cuts_.everything_on(Side::kServer).totals};
}

void FluidBounds::look_at_rows() {
  const std::size_t count = graph_.operators.size();
  std::vector<Wanted> wants(count);
  for (const int output : graph_.outputs) wants[as_index(output)].is_all = true;
  for (std::size_t i = count; i-- > 0;) {
    const Operator& each = graph_.operators[i];
    spared_[i].assign(each.operands.size(), 0);
    if (!cuts_.is_wanted(static_cast<int>(i))) continue;
    const std::vector<char> wanted = wants[i].by_row(each.rows);
    const std::int64_t computed = wanted.empty() ? each.rows : std::count(wanted.begin(), wanted.end(), 1);
    idle_[i] = 1 - static_cast<double>(computed) / static_cast<double>(each.rows);
    local_seconds_ += each.robot.seconds(computed);
    is_proportional_ = is_proportional_ && (computed == each.rows || each.operands.empty());
    bool does_each_need = each.operands.empty();
    std::vector<char> needs_any;  // by row, if operands need rows
    for (std::size_t k = 0; k < each.operands.size(); ++k) {
      const Operand& operand = each.operands[k];
      Wanted& from = wants[as_index(operand.producer)];
      const std::int64_t rows = graph_.operators[as_index(operand.producer)].rows;
      if (!operand.needed) {
        from.is_all = from.is_all || computed > 0;
        does_each_need = true;
      } else {
        const std::vector<Region> needed = needed_by_row(operand, each.rows, rows);
        needs_any.resize(needed.size(), 0);
        Region run;  // adjacent rows, merged into one entry
        for (std::size_t row = 0; row < needed.size(); ++row) {
          if (needed[row].is_empty()) continue;
          needs_any[row] = 1;
          if (!is_wanted(wanted, row)) continue;
          const bool does_touch = run.begin <= needed[row].begin && needed[row].begin <= run.end;
          if (!does_touch) from.add(std::exchange(run, needed[row]), rows);
          run.end = std::max(run.end, needed[row].end);
        }
        from.add(run, rows);
        spared_[i][k] = most_spared(needed, rows);
        is_proportional_ = is_proportional_ && spared_[i][k] == 0;
      }
    }
    if (!does_each_need && std::find(needs_any.begin(), needs_any.end(), 0) != needs_any.end()) waits_ = 1;
  }
}

// The amounts that bound the time of a plan that uses the server, by resource.
Amounts FluidBounds::column(const Totals& totals, const LinkCost& link) const {
  const double up = totals.up_bytes / link.up_bytes_per_second;
  const double down = totals.down_bytes / link.down_bytes_per_second;
  const double server = totals.server_seconds + waits_ * link.latency;
  if (link.is_half_duplex) return {totals.robot_seconds, server, up + down + link.latency, 0};
  return {totals.robot_seconds, server, up + waits_ * link.latency, down + waits_ * link.latency};
}

LayerCut FluidBounds::cheapest(const Amounts& weights, const LinkCost& link) {
  const double down = link.is_half_duplex ? weights[2] : weights[3];
  LayerCut cut = cuts_.cheapest(
      {weights[0], weights[1], weights[2] / link.up_bytes_per_second, down / link.down_bytes_per_second});
  const Amounts latencies = column({}, link);
  cut.value += std::inner_product(weights.begin(), weights.end(), latencies.begin(), 0.0);
  return cut;
}

// By weak duality a cut's value, minus what relaxing each condition may save, bounds the plans that the conditions
// exclude. Conditions with a possible saving are tried both ways: at that price, and dropped.
double FluidBounds::certified(const Amounts& weights, const LinkCost& link) {
  double best = 0;
  for (const bool required : {false, true}) {
    for (std::size_t i = 0; i < spared_.size(); ++i) {
      for (std::size_t k = 0; k < spared_[i].size(); ++k) {
        if (spared_[i][k] > 0) cuts_.set_required(static_cast<int>(i), static_cast<int>(k), required);
      }
    }
    double value = cheapest(weights, link).value;
    const CutGraph::Multipliers multipliers = cuts_.multipliers();
    for (std::size_t i = 0; i < spared_.size(); ++i) {
      value -= idle_[i] * multipliers.computed[i];
      for (std::size_t k = 0; k < spared_[i].size(); ++k) value -= spared_[i][k] * multipliers.operands[i][k];
    }
    best = std::max(best, value);
  }
  return best;
}

double FluidBounds::least(const Amounts& weights, const LinkCost& link) {
  const double value = is_proportional_ ? cheapest(weights, link).value : certified(weights, link);
  return std::min(value, weights[0] * local_seconds_);
}

FluidBound FluidBounds::at(const LinkCost& link) {
  check(link);
  FluidBound bound;
  double best = -1;
  Amounts weights{1, 0, 0, 0};
  while (bound.cuts < kMaxCuts) {
    std::vector<Amounts> columns;
    for (const Totals& totals : known_) columns.push_back(column(totals, link));
    const WeightGame game = solve_weights(columns);
    const LayerCut cut = cheapest(game.weights, link);
    ++bound.cuts;
    if (cut.value > best) {
      best = cut.value;
      weights = game.weights;
    }
    if (game.value - best <= kGap * game.value) break;
    if (std::find(known_.begin(), known_.end(), cut.totals) != known_.end()) break;
    known_.push_back(cut.totals);
  }
  if (!is_proportional_) {
    best = certified(weights, link);
    bound.cuts += 2;
  }
  if (best >= local_seconds_) {
    bound.seconds = local_seconds_;
    bound.robot = 1;
    return bound;
  }
  bound.seconds = best;
  bound.robot = weights[0];
  bound.server = weights[1];
  bound.up = weights[2];
  bound.down = link.is_half_duplex ? weights[2] : weights[3];
  return bound;
}

FluidBound fluid_bound(const OperatorGraph& graph, const LinkCost& link) {
  check(graph);
  check(link);
  return FluidBounds(graph).at(link);
}

}  // namespace atl::plan
