// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/server_load.h"

#include <algorithm>
#include <cmath>

#include "atoll/plan/random.h"
#include "atoll/plan/text.h"

namespace atl::plan {

double expected_wait(const ServerLoad& load) {
  if (load.turns < 1) refuse("a server has " + counted(load.turns, "turn") + " at once: give at least 1");
  require_amount("the models that compute", load.computing);
  require_amount("the models that wait", load.waiting);
  require_amount("the seconds of a turn", load.turn_seconds);
  const double turns = load.turns;
  // The first of several equal turns, seen at a random moment, ends after 1 / (turns + 1) of its length.
  const double are_taken = std::pow(std::min(1.0, load.computing / turns), turns);
  const double told = load.turn_seconds * (are_taken / (turns + 1) + load.waiting / turns);
  if (!load.waited) return told;
  require_amount("the seconds waited", *load.waited);
  return (told + *load.waited) / 2;
}

double expected_stretch(const ServerLoad& load) {
  require_amount("the messages on the radio", load.messages);
  return 1 + load.messages;
}

PlanChooser::PlanChooser(std::uint64_t seed, double gain) : seed_(seed), gain_(gain) {
  if (!(gain >= 0 && gain < 1)) refuse("the gain of a change is " + number(gain) + ": give a share in [0, 1)");
}

std::size_t PlanChooser::choose(std::size_t current, std::span<const double> seconds, int others) {
  const auto best = static_cast<std::size_t>(std::min_element(seconds.begin(), seconds.end()) - seconds.begin());
  Random random(seed_, decisions_++, Purpose::kChoice);
  const bool may_move = random.unit() * (others + 1) < 1;
  return may_move && seconds[best] < seconds[current] * (1 - gain_) ? best : current;
}

}  // namespace atl::plan
