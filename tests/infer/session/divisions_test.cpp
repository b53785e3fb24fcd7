// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/divisions.h"

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
    if (divide != nullptr) divisions->on_divided({divide->model, divide->division});
  }
  void send(const wire::FrameHeader&, HostBytes) override {}
  Divisions* divisions = nullptr;
  std::atomic<bool> is_broken = false;
};

class DivisionsTest : public testing::Test {
 protected:
  DivisionsTest() {
    test::register_layer_rule();
    graph_ = test::modelled_graph(test::layers_of(0.03));
    robot_ = test::modelled_profile(graph_, Machine::kRobot);
    divisions_ = std::make_unique<Divisions>(graph_, robot_, Divisions::Options{}, way_, rates_, [] {});
    way_.divisions = divisions_.get();
  }
  wire::Ready ready(std::size_t nodes) const {
    const Profile profile = test::modelled_profile(graph_, Machine::kServer);
    wire::Ready message{1, "test", profile.fixed, profile.per_row, profile.whole, profile.input_tensor, profile.dim};
    for (auto* times : {&message.fixed, &message.per_row, &message.whole}) times->resize(nodes);
    return message;
  }
  bool wait() const { return divisions_->wait(Deadline::after(20s)); }

  Graph graph_;
  Profile robot_;
  Way way_;
  LinkRates rates_;
  std::unique_ptr<Divisions> divisions_;
};

TEST_F(DivisionsTest, WhateverIsThrownIsAStatedFailure) {
  way_.is_broken = true;
  divisions_->on_ready(ready(graph_.nodes.size()));
  EXPECT_FALSE(wait());
  EXPECT_NE(divisions_->failure().find("something odd"), std::string::npos) << divisions_->failure();
  way_.is_broken = false;
  divisions_->on_ready(ready(graph_.nodes.size()));
  EXPECT_TRUE(wait()) << "and the thread goes on";
  EXPECT_EQ(divisions_->failure(), "");
}

TEST_F(DivisionsTest, AServersProfileOfAnotherGraphIsOneToo) {
  divisions_->on_ready(ready(graph_.nodes.size() + 1));
  EXPECT_FALSE(wait());
  EXPECT_NE(divisions_->failure().find("nodes"), std::string::npos) << divisions_->failure();
  divisions_->on_lost();
  EXPECT_EQ(divisions_->failure(), "");
}

}  // namespace
}  // namespace atl::infer
