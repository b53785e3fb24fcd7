// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/simulate/actions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/plan/plan_cases.h"

namespace atl::plan::simulated {
namespace {

using plan::test::refusal;

std::string text_of(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) text.append(text.empty() ? "" : " ").append(to_text(action));
  return text;
}

std::vector<std::string> texts(Order order, const Shape& shape) {
  std::vector<std::string> result;
  for (const auto& actions : actions_of(order, shape, "p")) result.push_back(text_of(actions));
  return result;
}

TEST(SimulatedActions, TextsAndBack) {
  for (const char* text : {"0F0", "12B7", "3I10", "0W2147483647"}) EXPECT_EQ(to_text(action_of(text)), text);
  for (const char* text : {"", "F0", "0F", "0f0", "0SEND_F0", "-1F0", "0F-1", "0F0 ", "0F99999999999", "0FF1"}) {
    EXPECT_NE(refusal([&] { action_of(text); }).find("such as 0F3"), std::string::npos) << text;
  }
}

TEST(SimulatedActions, Names) {
  EXPECT_EQ(order_of("1f1b"), Order::k1F1B);
  EXPECT_EQ(order_of("zb1p"), Order::kZeroBubble);
  EXPECT_STREQ(to_string(Order::kZeroBubble), "InterleavedZeroBubble");
  EXPECT_EQ(order_of(to_string(Order::kZeroBubbleV)), Order::kZeroBubbleV);
  EXPECT_NE(refusal([] { order_of("DualPipe"); }).find("GPipe, 1F1B, Interleaved1F1B"), std::string::npos);
}

TEST(SimulatedActions, OrdersByHand) {
  EXPECT_EQ(texts(Order::kGPipe, {2, 2, 2}), (std::vector<std::string>{"0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"}));
  EXPECT_EQ(texts(Order::k1F1B, {3, 3, 4})[0], "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3");
  EXPECT_EQ(texts(Order::k1F1B, {3, 3, 4})[2], "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3");
  EXPECT_EQ(texts(Order::k1F1B, {3, 3, 1}), (std::vector<std::string>{"0F0 0B0", "1F0 1B0", "2F0 2B0"}));
  EXPECT_EQ(texts(Order::kInterleaved, {2, 4, 2})[1], "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1");
  EXPECT_EQ(texts(Order::kLoopedBfs, {2, 4, 2})[0], "0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0");
  EXPECT_EQ(texts(Order::kZeroBubble, {2, 2, 3}),
            (std::vector<std::string>{"0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"}));
  EXPECT_EQ(texts(Order::kZeroBubbleV, {1, 2, 2})[0], "0F0 1F0 1I0 1W0 0F1 0I0 0W0 1F1 1I1 1W1 0I1 0W1");
}

// The place of a stage: round robin, or for kZeroBubbleV in a V.
int place_of(Order order, const Shape& shape, int stage) {
  const int place = stage % shape.places;
  return order == Order::kZeroBubbleV && stage / shape.places % 2 == 1 ? shape.places - 1 - place : place;
}

// Each stage does each micro-batch once, on its place, and inputs come before what needs them.
TEST(SimulatedActions, AreComplete) {
  for (const Order order :
       {Order::kGPipe, Order::k1F1B, Order::kInterleaved, Order::kLoopedBfs, Order::kZeroBubble, Order::kZeroBubbleV}) {
    for (int places = 1; places <= 5; ++places) {
      for (int rounds = 1; rounds <= 3; ++rounds) {
        const bool is_single = order == Order::kGPipe || order == Order::k1F1B;
        if ((is_single && rounds != 1) || (order == Order::kZeroBubbleV && rounds != 2)) continue;
        for (const int micro_batches : {1, 2, places, 2 * places, 3 * places}) {
          const Shape shape{places, places * rounds, micro_batches};
          if (micro_batches % std::max(1, micro_batches / places) != 0) continue;
          const auto actions = actions_of(order, shape, "p");
          const auto found = places_of(actions, shape, "p");
          for (int stage = 0; stage < shape.stages; ++stage) {
            EXPECT_EQ(found[static_cast<std::size_t>(stage)], place_of(order, shape, stage)) << to_string(order);
          }
        }
      }
    }
  }
}

TEST(SimulatedActions, ShapesThatDoNotFit) {
  const auto message = [](Order order, const Shape& shape) {
    return refusal([&] { actions_of(order, shape, "pipeline 3"); });
  };
  EXPECT_EQ(message(Order::k1F1B, {2, 4, 8}),
            "pipeline 3 has 4 stages on 2 ranks with 8 micro-batches, but 1F1B needs one stage for each rank: use "
            "Interleaved1F1B or LoopedBFS, or as many stages as ranks");
  EXPECT_NE(message(Order::kInterleaved, {2, 3, 8}).find("the same number of stages on each rank"), std::string::npos);
  EXPECT_NE(message(Order::kInterleaved, {4, 8, 9}).find("use 8 or 10 micro-batches"), std::string::npos);
  EXPECT_NE(message(Order::kZeroBubbleV, {2, 2, 8}).find("two stages on each rank"), std::string::npos);
  EXPECT_NE(message(Order::kCustom, {2, 2, 8}).find("lacks \"actions\""), std::string::npos);
}

TEST(SimulatedActions, PlacesOfWhatIsWrong) {
  const auto message = [](const std::vector<std::vector<std::string>>& rows, const Shape& shape) {
    std::vector<std::vector<Action>> actions;
    for (const auto& row : rows) {
      actions.emplace_back();
      for (const std::string& text : row) actions.back().push_back(action_of(text));
    }
    return refusal([&] { places_of(actions, shape, "p"); });
  };
  EXPECT_EQ(message({{"0F0", "0B0"}, {"1F0", "1I0", "1W0"}}, {2, 2, 1}), "");
  EXPECT_EQ(message({{"0F0", "0B0"}, {"1F0", "1I0"}}, {2, 2, 1}),
            "p has for stage 1 and micro-batch 0 1 F, 1 I: give one F, and one B or one I and one W");
  EXPECT_NE(message({{"0F0", "0B0", "0W0"}}, {1, 1, 1}).find("1 F, 1 B, 1 W"), std::string::npos);
  EXPECT_NE(message({{"0F0", "0B0"}}, {1, 1, 2}).find("micro-batch 1 no action"), std::string::npos);
  EXPECT_NE(message({{"0F0"}, {"0B0"}}, {2, 1, 1}).find("on the places 0 and 1"), std::string::npos);
  EXPECT_NE(message({{"0F0", "0B0", "1F0"}}, {1, 1, 1}).find("has the action 1F0, but 1 stage"), std::string::npos);
}

}  // namespace
}  // namespace atl::plan::simulated
