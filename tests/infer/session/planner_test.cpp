// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/planner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>

#include "tests/infer/session/cases.h"

namespace atl::infer {
namespace {

using namespace std::chrono_literals;
using test::Machine;

/// A way to a server that takes every division, or to none.
class Way : public FrameSender {
 public:
  void send(const wire::Message& message) override {
    if (is_broken) throw std::runtime_error("something odd");
    const auto* divide = std::get_if<wire::Divide>(&message);
    if (divide != nullptr) planner->on_divided({divide->model, divide->division});
  }
  void send(const wire::FrameHeader&, HostBytes) override {}
  Planner* planner = nullptr;
  std::atomic<bool> is_broken = false;
};

class PlannerTest : public testing::Test {
 protected:
  PlannerTest() {
    test::register_layer_rule();
    graph_ = test::modelled_graph(test::layers_of(0.03));
    robot_ = test::modelled_profile(graph_, Machine::kRobot);
    planner_ = std::make_unique<Planner>(graph_, robot_, Planner::Options{}, way_, rates_, [] {});
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

}  // namespace
}  // namespace atl::infer
