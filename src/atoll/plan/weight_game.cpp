// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/weight_game.h"

#include <algorithm>
#include <vector>

#include "atoll/plan/numbers.h"

namespace atl::plan {
namespace {

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

}  // namespace atl::plan
