// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/server_load.h"

#include <algorithm>
#include <cmath>

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

}  // namespace atl::plan
