// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "atoll/plan/numbers.h"
#include "atoll/plan/operators/fluid_bound.h"
#include "bench/fleet/plan.h"

namespace atl::plan::fleet {
namespace {

constexpr int kLevels = 100;  // of a part, from 0 to 1

// A constraint: the plan's weighted busy times are at least `least`.
struct Condition {
  double robot = 0;
  double server = 0;
  double radio = 0;
  double least = 0;

  // Returns the least time in which it can hold if server and radio are busy for no longer than that, nor than the
  // robot's parts of it or of a longer period.
  double seconds(double period, double server_part, double radio_part) const {
    const double whole = robot + server * server_part + radio * radio_part;
    if (least >= whole * period) return whole > 0 ? least / whole : 0;
    const bool is_server_first = server_part < radio_part;
    const double first = period * std::min(server_part, radio_part);
    const double second = period * std::max(server_part, radio_part);
    const double first_weight = is_server_first ? server : radio;
    const double second_weight = is_server_first ? radio : server;
    if (least <= first * (robot + server + radio)) return least / (robot + server + radio);
    const double rest = least - first_weight * first;
    if (rest <= second * (robot + second_weight)) return rest / (robot + second_weight);
    return (rest - second_weight * second) / robot;
  }
};

std::vector<Condition> conditions_of(const FleetRobot& robot) {
  constexpr int kSteps = 8;
  FluidBounds bounds(*robot.graph);
  const FluidBound alone = bounds.at(robot.link);
  // A latency uses no part: only the robot as a whole waits for it.
  LinkCost link = robot.link;
  link.latency = 0;
  std::vector<Condition> conditions;
  const auto add = [&](double on_robot, double server, double radio) {
    const double least = bounds.least({on_robot, server, radio, 0}, link);
    conditions.push_back({on_robot, server, radio, least});
  };
  for (int on_robot = 0; on_robot <= kSteps; ++on_robot) {
    for (int server = 0; on_robot + server <= kSteps; ++server) {
      const int radio = kSteps - on_robot - server;
      add(on_robot / double{kSteps}, server / double{kSteps}, radio / double{kSteps});
    }
  }
  // Almost nothing on the robot: the cost of leaving everything to the other resources.
  for (const double share : {1e-4, 1e-3, 1e-2, 1.0 / 32}) {
    for (const double server : {0.0, 0.5, 1.0}) add(share, (1 - share) * server, (1 - share) * (1 - server));
  }
  if (robot.link.is_half_duplex) add(alone.robot, alone.server, alone.up);
  // For any parts.
  conditions.push_back({1, 0, 0, alone.seconds});
  return conditions;
}

// A robot's least times by level of its parts.
struct Times {
  std::vector<double> seconds;  // by level of the server, then of the radio
  int robots = 1;               // number of equal robots

  double at(std::size_t server, std::size_t radio) const { return seconds[server * (kLevels + 1) + radio]; }
};

// Levels are denser where parts are small. A level stands for the parts from the one before it up to its own.
double part(std::size_t level) { return std::pow(static_cast<double>(level) / kLevels, 2); }
double lower_part(std::size_t level) { return level == 0 ? 0 : part(level - 1); }

Times times_of(const FleetRobot& robot, double airtime) {
  Times times;
  const std::vector<Condition> conditions = conditions_of(robot);
  for (std::size_t server = 0; server <= kLevels; ++server) {
    for (std::size_t radio = 0; radio <= kLevels; ++radio) {
      double most = 0;
      for (const Condition& each : conditions) {
        most = std::max(most, each.seconds(robot.period, part(server), std::min(airtime, part(radio))));
      }
      times.seconds.push_back(most);
    }
  }
  return times;
}

struct Prices {
  double server = 0;
  double radio = 0;
};

double bound_at(const std::vector<Times>& all, const Shared& shared, const Prices& prices) {
  double bound = -prices.server * shared.turns - prices.radio * shared.airtime;
  for (const Times& times : all) {
    double least = kInfinity;
    for (std::size_t server = 0; server <= kLevels; ++server) {
      for (std::size_t radio = 0; radio <= kLevels; ++radio) {
        const double price = prices.server * lower_part(server) + prices.radio * lower_part(radio);
        least = std::min(least, times.at(server, radio) + price);
      }
    }
    bound += times.robots * least;
  }
  return bound;
}

// The bound is concave in the prices, so a coarse grid and finer ones around its best point come close.
double best_bound(const std::vector<Times>& all, const Shared& shared, double least, double most) {
  constexpr int kSteps = 12;
  Prices best;
  double bound = bound_at(all, shared, best);
  const auto consider = [&](double server, double radio) {
    const double value = bound_at(all, shared, {server, radio});
    if (!(value > bound)) return;
    bound = value;
    best = {server, radio};
  };
  double ratio = std::pow(most / least, 1.0 / (kSteps - 1));
  const auto price = [&](int step) { return step < 0 ? 0 : least * std::pow(ratio, step); };
  for (int server = -1; server < kSteps; ++server) {
    for (int radio = -1; radio < kSteps; ++radio) consider(price(server), price(radio));
  }
  for (; ratio > 1.01; ratio = std::sqrt(ratio)) {
    const Prices middle = best;
    for (const double server : {1 / ratio, 1.0, ratio}) {
      for (const double radio : {1 / ratio, 1.0, ratio}) consider(middle.server * server, middle.radio * radio);
    }
  }
  return bound;
}

bool are_equal(const FleetRobot& a, const FleetRobot& b) {
  return a.graph == b.graph && a.period == b.period && a.link.up_bytes_per_second == b.link.up_bytes_per_second &&
         a.link.down_bytes_per_second == b.link.down_bytes_per_second && a.link.latency == b.link.latency;
}

}  // namespace

double fleet_bound(std::span<const FleetRobot> robots, const Shared& shared) {
  check(robots, shared);
  std::vector<Times> all;
  std::vector<const FleetRobot*> kinds;
  double least = 0;
  double most = 0;
  for (const FleetRobot& robot : robots) {
    std::size_t kind = 0;
    while (kind < kinds.size() && !are_equal(*kinds[kind], robot)) ++kind;
    if (kind == kinds.size()) {
      kinds.push_back(&robot);
      all.push_back(times_of(robot, shared.airtime));
    } else {
      ++all[kind].robots;
    }
    least += all[kind].at(kLevels, kLevels);
    most += all[kind].at(0, 0);
  }
  if (!(least > 0)) return 0;
  return best_bound(all, shared, least / 16, 64 * most);
}

}  // namespace atl::plan::fleet
