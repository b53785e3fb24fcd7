// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tests/infer/session/cases.h"

namespace atl::infer {
namespace {

using namespace std::chrono_literals;
using test::Machine;

/// A way to a server that takes every division, or answers none, or to no server.
class Way : public FrameSender {
 public:
  void send(const wire::Message& message) override {
    if (is_broken) throw std::runtime_error("something odd");
    const auto* divide = std::get_if<wire::Divide>(&message);
    if (divide == nullptr) return;
    ++divisions;
    if (!is_silent) planner->on_divided({divide->model, divide->division});
  }
  void send(const wire::FrameHeader&, HostBytes) override {}
  Planner* planner = nullptr;
  std::atomic<bool> is_broken = false;
  std::atomic<bool> is_silent = false;
  std::atomic<std::uint32_t> divisions = 0;  // which are numbered from 1
};

class PlannerTest : public testing::Test {
 protected:
  PlannerTest() {
    test::register_layer_rule();
    graph_ = test::modelled_graph(test::layers_of(0.03));
    robot_ = test::modelled_profile(graph_, Machine::kRobot);
    use(Planner::Options{});
  }
  void use(Planner::Options options) {
    planner_ = std::make_unique<Planner>(graph_, robot_, std::move(options), way_, rates_, [] {});
    way_.planner = planner_.get();
  }
  wire::Ready ready(std::size_t nodes) const {
    const Profile profile = test::modelled_profile(graph_, Machine::kServer);
    wire::Ready message{1, "test", profile.fixed, profile.per_row, profile.whole, profile.input_tensor, profile.dim};
    for (auto* times : {&message.fixed, &message.per_row, &message.whole}) times->resize(nodes);
    return message;
  }
  bool wait() const { return planner_->wait(Deadline::after(20s)); }

  Graph graph_;
  Profile robot_;
  Way way_;
  LinkRates rates_;
  std::unique_ptr<Planner> planner_;
};

TEST_F(PlannerTest, WhateverIsThrownIsAStatedFailure) {
  way_.is_broken = true;
  planner_->on_ready(ready(graph_.nodes.size()));
  EXPECT_FALSE(wait());
  EXPECT_NE(planner_->failure().find("something odd"), std::string::npos) << planner_->failure();
  way_.is_broken = false;
  planner_->on_ready(ready(graph_.nodes.size()));
  EXPECT_TRUE(wait()) << "and the thread goes on";
  EXPECT_EQ(planner_->failure(), "");
}

TEST_F(PlannerTest, AServersProfileOfAnotherGraphIsOneToo) {
  planner_->on_ready(ready(graph_.nodes.size() + 1));
  EXPECT_FALSE(wait());
  EXPECT_NE(planner_->failure().find("nodes"), std::string::npos) << planner_->failure();
  planner_->on_lost();
  EXPECT_EQ(planner_->failure(), "");
}

/// The server has not answered the one plan in time.
class SlowPlannerTest : public PlannerTest {
 protected:
  void SetUp() override {
    Planner::Options options;
    options.plans.policy = "offload";
    options.answer_limit = 1ms;
    use(options);
    way_.is_silent = true;
    planner_->on_ready(ready(graph_.nodes.size()));
    ASSERT_TRUE(wait());
    ASSERT_EQ(way_.divisions, 1U);
    ASSERT_FALSE(has_plan());
  }
  bool has_plan() const {
    const std::vector<bool> usable = planner_->offer()->usable();
    return std::find(usable.begin(), usable.end(), true) != usable.end();
  }
  template <typename Holds>
  static bool comes_true(const Holds& holds) {
    const auto limit = Deadline::after(20s);
    while (!holds() && !limit.expired()) std::this_thread::yield();
    return holds();
  }
};

TEST_F(SlowPlannerTest, AnAnswerThatComesLateIsUsed) {
  planner_->on_divided({1, way_.divisions});
  EXPECT_TRUE(comes_true([this] { return has_plan(); }));
  EXPECT_TRUE(wait());
  EXPECT_EQ(way_.divisions, 1U) << "the server knows the plan";
}

TEST_F(SlowPlannerTest, ARefusalThatComesLateIsStated) {
  planner_->on_refused("not this one");
  EXPECT_TRUE(comes_true([this] { return !planner_->failure().empty(); }));
  EXPECT_NE(planner_->failure().find("not this one"), std::string::npos);
}

}  // namespace
}  // namespace atl::infer
