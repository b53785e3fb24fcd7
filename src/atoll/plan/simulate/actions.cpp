// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/simulate/actions.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <string_view>
#include <system_error>
#include <utility>

#include "atoll/plan/numbers.h"
#include "atoll/plan/text.h"

namespace atl::plan::simulated {
namespace {

constexpr std::string_view kLetters = "FBIW";

constexpr std::pair<std::string_view, Order> kOrderNames[] = {{"GPipe", Order::kGPipe},
                                                              {"1F1B", Order::k1F1B},
                                                              {"Interleaved1F1B", Order::kInterleaved},
                                                              {"LoopedBFS", Order::kLoopedBfs},
                                                              {"InterleavedZeroBubble", Order::kZeroBubble},
                                                              {"ZBVZeroBubble", Order::kZeroBubbleV},
                                                              {"custom", Order::kCustom},
                                                              {"ZB1P", Order::kZeroBubble}};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

using Actions = std::vector<Action>;

Actions gpipe(const Shape& shape, int place) {
  Actions actions;
  for (const Work work : {Work::kForward, Work::kBackward}) {
    for (int m = 0; m < shape.micro_batches; ++m) actions.push_back({work, place, m});
  }
  return actions;
}

Actions looped(const Shape& shape, int place) {
  Actions actions;
  const int rounds = shape.stages / shape.places;
  for (int round = 0; round < rounds; ++round) {
    for (int m = 0; m < shape.micro_batches; ++m) {
      actions.push_back({Work::kForward, round * shape.places + place, m});
    }
  }
  for (int round = rounds - 1; round >= 0; --round) {
    for (int m = shape.micro_batches - 1; m >= 0; --m) {
      actions.push_back({Work::kBackward, round * shape.places + place, m});
    }
  }
  return actions;
}

// Depth first: a round of micro-batches passes all stages of a place before the next round starts. A place does
// `warm_up` forwards, more of them for each hop to the last place, then a forward and a backward in turn, then the
// remaining backwards. If gradients of weights are separate, each follows `delay` backwards later.
Actions depth_first(const Shape& shape, int place, int forwards_per_hop, bool is_split) {
  const int own_stages = shape.stages / shape.places;
  const int in_round = shape.micro_batches / std::max(1, shape.micro_batches / shape.places);
  const int all = own_stages * shape.micro_batches;
  const int hops = shape.places - 1 - place;
  const int warm_up = std::min(all, (own_stages - 1) * in_round + forwards_per_hop * hops);
  const int delay = place;
  Actions actions;
  const auto add = [&](Work work, int i) {
    const int turn = i / in_round % own_stages;
    const int round = work == Work::kForward ? turn : own_stages - 1 - turn;
    const int micro_batch = i / (in_round * own_stages) * in_round + i % in_round;
    actions.push_back({work, round * shape.places + place, micro_batch});
  };
  for (int i = 0; i < warm_up; ++i) add(Work::kForward, i);
  for (int i = 0; i < all; ++i) {
    if (warm_up + i < all) add(Work::kForward, warm_up + i);
    add(is_split ? Work::kInput : Work::kBackward, i);
    if (is_split && i >= delay) add(Work::kWeight, i - delay);
  }
  for (int i = std::max(0, all - delay); is_split && i < all; ++i) add(Work::kWeight, i);
  return actions;
}

// Each place has one stage on the way down and one on the way back. The order is made for at least 2 places - 1
// micro-batches; with fewer, the missing ones are skipped.
Actions in_v(const Shape& shape, int place) {
  constexpr int kThere = 0;
  constexpr int kBack = 1;
  Actions actions;
  std::array<std::array<int, 4>, 2> done{};  // by way, then by Work
  const auto count = [&](int way, Work work) -> int& { return done[as_index(way)][static_cast<std::size_t>(work)]; };
  const auto add = [&](int way, Work work) {
    const int micro_batch = count(way, work)++;
    const int stage = way == kThere ? place : 2 * shape.places - 1 - place;
    if (micro_batch < shape.micro_batches) actions.push_back({work, stage, micro_batch});
  };
  const auto forward = [&](int way) { add(way, Work::kForward); };
  const auto backward = [&](int way) {
    add(way, Work::kInput);
    add(way, Work::kWeight);
  };
  for (int i = 0; i < 2 * (shape.places - place) - 1; ++i) forward(kThere);
  for (int i = 0; i < place; ++i) {
    forward(kBack);
    forward(kThere);
  }
  for (int i = place; i < shape.places; ++i) {
    forward(kBack);
    backward(kBack);
  }
  const int all = std::max(2 * shape.places - 1, shape.micro_batches);
  const int& there = count(kThere, Work::kForward);
  while (count(kBack, Work::kForward) < there || there < all) {
    if (there < all) forward(kThere);
    backward(kThere);
    forward(kBack);
    backward(kBack);
  }
  for (int i = 0; i < place; ++i) {
    add(kThere, Work::kInput);
    add(kBack, Work::kInput);
  }
  for (int i = place; i < shape.places; ++i) backward(kThere);
  for (const int way : {kBack, kThere}) {
    while (count(way, Work::kWeight) < count(way, Work::kInput)) add(way, Work::kWeight);
  }
  return actions;
}

std::string shape_text(const Shape& shape) {
  return counted(shape.stages, "stage") + " on " + counted(shape.places, "rank") + " with " +
         std::to_string(shape.micro_batches) + (shape.micro_batches == 1 ? " micro-batch" : " micro-batches");
}

void check_shape(Order order, const Shape& shape, const std::string& name) {
  const std::string with = name + " has " + shape_text(shape) + ", but " + to_string(order);
  const bool is_single = order == Order::kGPipe || order == Order::k1F1B;
  if (is_single && shape.stages != shape.places) {
    refuse(with + " needs one stage for each rank: use Interleaved1F1B or LoopedBFS, or as many stages as ranks");
  }
  if (shape.stages % shape.places != 0) refuse(with + " needs the same number of stages on each rank");
  if (order == Order::kZeroBubbleV && shape.stages != 2 * shape.places) refuse(with + " needs two stages on each rank");
  if (order == Order::kInterleaved || order == Order::kZeroBubble) {
    const int rounds = std::max(1, shape.micro_batches / shape.places);
    if (shape.micro_batches % rounds != 0) {
      const int fitting = shape.micro_batches / rounds * rounds;
      refuse(with + " runs them in " + counted(rounds, "round") + " of equal size: use " + std::to_string(fitting) +
             " or " + std::to_string(fitting + rounds) + " micro-batches");
    }
  }
}

// Numbers of actions found for one micro-batch on one stage, by Work.
using Seen = std::array<int, 4>;

void check_seen(const Seen& seen, int stage, int micro_batch, const std::string& name) {
  if (seen == Seen{1, 1, 0, 0} || seen == Seen{1, 0, 1, 1}) return;
  std::string found;
  for (std::size_t i = 0; i < kLetters.size(); ++i) {
    if (seen[i] == 0) continue;
    found.append(found.empty() ? "" : ", ").append(std::to_string(seen[i])).append(" ").append(1, kLetters[i]);
  }
  refuse(name + " has for stage " + std::to_string(stage) + " and micro-batch " + std::to_string(micro_batch) + " " +
         (found.empty() ? "no action" : found) + ": give one F, and one B or one I and one W");
}

}  // namespace

std::string to_text(const Action& action) {
  return std::to_string(action.stage) + kLetters[static_cast<std::size_t>(action.work)] +
         std::to_string(action.micro_batch);
}

Action action_of(const std::string& text) {
  Action action;
  const char* const end = text.data() + text.size();
  const auto stage = std::from_chars(text.data(), end, action.stage);
  if (stage.ec == std::errc() && stage.ptr != end && action.stage >= 0) {
    const std::size_t letter = kLetters.find(*stage.ptr);
    const auto micro_batch = std::from_chars(stage.ptr + 1, end, action.micro_batch);
    if (letter != std::string_view::npos && micro_batch.ec == std::errc() && micro_batch.ptr == end &&
        action.micro_batch >= 0) {
      action.work = static_cast<Work>(letter);
      return action;
    }
  }
  refuse("the action \"" + text.substr(0, 40) +
         "\" is not a stage, one of F, B, I, W, and a micro-batch, such as 0F3; transfers follow from these");
}

Order order_of(const std::string& name) {
  for (const auto& [known, order] : kOrderNames) {
    if (std::ranges::equal(known, name, {}, lower, lower)) return order;
  }
  const auto name_of = [](const auto& each) { return each.first; };
  refuse("the schedule \"" + name.substr(0, 40) + "\" is not known: give one of " + joined(kOrderNames, name_of));
}

const char* to_string(Order order) noexcept {
  return std::ranges::find(kOrderNames, order, &std::pair<std::string_view, Order>::second)->first.data();
}

std::vector<std::vector<Action>> actions_of(Order order, const Shape& shape, const std::string& name) {
  if (order == Order::kCustom) refuse(name + " lacks \"actions\", which the schedule custom needs");
  check_shape(order, shape, name);
  std::vector<Actions> result;
  for (int place = 0; place < shape.places; ++place) {
    switch (order) {
      case Order::kGPipe: result.push_back(gpipe(shape, place)); break;
      case Order::kLoopedBfs: result.push_back(looped(shape, place)); break;
      case Order::kZeroBubbleV: result.push_back(in_v(shape, place)); break;
      case Order::kZeroBubble: result.push_back(depth_first(shape, place, 1, true)); break;
      case Order::kInterleaved: result.push_back(depth_first(shape, place, 2, false)); break;
      default: result.push_back(depth_first(shape, place, 1, false));
    }
  }
  return result;
}

std::vector<int> places_of(const std::vector<std::vector<Action>>& actions, const Shape& shape,
                           const std::string& name) {
  std::vector<int> places(static_cast<std::size_t>(shape.stages), -1);
  const auto micro_batches = static_cast<std::size_t>(shape.micro_batches);
  std::vector<Seen> seen(places.size() * micro_batches);
  for (int place = 0; place < static_cast<int>(actions.size()); ++place) {
    for (const Action& action : actions[static_cast<std::size_t>(place)]) {
      if (action.stage >= shape.stages || action.micro_batch >= shape.micro_batches) {
        refuse(name + " has the action " + to_text(action) + ", but " + shape_text(shape));
      }
      const auto stage = static_cast<std::size_t>(action.stage);
      if (places[stage] >= 0 && places[stage] != place) {
        refuse(name + " has stage " + std::to_string(action.stage) + " on the places " + std::to_string(places[stage]) +
               " and " + std::to_string(place) + ": give all its actions to one");
      }
      places[stage] = place;
      const std::size_t unit = stage * micro_batches + static_cast<std::size_t>(action.micro_batch);
      ++seen[unit][static_cast<std::size_t>(action.work)];
    }
  }
  for (int stage = 0; stage < shape.stages; ++stage) {
    for (int m = 0; m < shape.micro_batches; ++m) {
      check_seen(seen[static_cast<std::size_t>(stage) * micro_batches + static_cast<std::size_t>(m)], stage, m, name);
    }
  }
  return places;
}

}  // namespace atl::plan::simulated
