// SPDX-License-Identifier: Apache-2.0
// Tests the checker: every schedule with one fault must be rejected.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "tests/collectives/schedule/cases.h"

namespace atl::collectives {
namespace {

constexpr ScheduleLimits kLimits{256, 640, 64, 1};

struct MutationCase {
  Topology topology;
  std::vector<Shape> shapes;
  std::vector<Schedule> schedules;
  std::string name;
};

// Updates the summary after a change, so that only the change itself can be noticed.
void summarise(const Topology& topology, int rank, Schedule& schedule) {
  std::set<int> peers;
  schedule.sent_bytes_inside = schedule.sent_bytes_bridge = 0;
  for (Lane& lane : schedule.lanes) {
    lane.bridge = false;
    for (std::uint32_t i = lane.first; i < lane.first + lane.count; ++i) {
      const Step& step = schedule.steps[i];
      std::vector<int> met;
      if (step.kind == StepKind::kSend || step.kind == StepKind::kReceive) met.push_back(step.peer);
      for (std::uint32_t s = 0; step.kind == StepKind::kReduce && s < step.source_count; ++s) {
        if (schedule.sources[step.first_source + s].peer >= 0)
          met.push_back(schedule.sources[step.first_source + s].peer);
      }
      for (const int peer : met) {
        peers.insert(peer);
        lane.bridge = lane.bridge || !topology.same_island(rank, peer);
      }
      if (step.kind != StepKind::kSend) continue;
      (topology.same_island(rank, step.peer) ? schedule.sent_bytes_inside : schedule.sent_bytes_bridge) +=
          step.range.bytes;
    }
  }
  schedule.peers.assign(peers.begin(), peers.end());
}

std::size_t lane_of(const Schedule& schedule, std::size_t step) {
  std::size_t lane = 0;
  while (step >= schedule.lanes[lane].first + std::size_t{schedule.lanes[lane].count}) ++lane;
  return lane;
}

void drop_step(Schedule& schedule, std::size_t index) {
  const std::size_t lane = lane_of(schedule, index);
  const auto place = static_cast<std::uint32_t>(index - schedule.lanes[lane].first);
  schedule.steps.erase(schedule.steps.begin() + static_cast<std::ptrdiff_t>(index));
  --schedule.lanes[lane].count;
  for (std::size_t later = lane + 1; later < schedule.lanes.size(); ++later) --schedule.lanes[later].first;
  for (Step& step : schedule.steps) {
    if (step.after_lane == static_cast<int>(lane) && step.after_steps > place) --step.after_steps;
  }
}

bool is_fence(const Step& step) { return step.kind == StepKind::kCopy && step.range.bytes == 0; }

std::vector<MutationCase> make_cases() {
  const std::vector<std::pair<std::vector<std::string>, bool>> layouts{{{"a", "a"}, false},
                                                                       {{"a", "b"}, false},
                                                                       {{"a", "b", "a", "b", "b"}, false},
                                                                       {{"a", "b", "c", "c"}, false},
                                                                       {{"a", "b", "a"}, true}};
  std::vector<MutationCase> cases;
  for (const auto& [labels, flat] : layouts) {
    for (const Operation operation : test::kOperations) {
      for (const std::uint64_t count : {16, 350}) {
        MutationCase made;
        made.topology = Topology::from_labels(labels, {}, flat);
        made.shapes = test::make_shapes(made.topology, operation, DataType::kFloat32, count, 1, false);
        made.schedules = test::build_all(made.topology, made.shapes, kLimits);
        made.name = test::describe(made.topology, made.shapes[0], kLimits);
        cases.push_back(std::move(made));
      }
    }
  }
  // With libraries inside "a" and, in the second, "b".
  for (const bool both : {false, true}) {
    for (const Operation operation : test::kOperations) {
      if (operation == Operation::kGather || operation == Operation::kScatter || operation == Operation::kAllToAll)
        continue;
      MutationCase made;
      made.topology = Topology::from_labels({"a", "b", "a", "b", "a"});
      made.topology.libraries = {"library", both ? "library" : ""};
      made.shapes = test::make_shapes(made.topology, operation, DataType::kFloat32, 350, 1, false);
      made.shapes = test::with_libraries(made.topology, std::move(made.shapes));
      made.schedules = test::build_all(made.topology, made.shapes, kLimits);
      made.name = test::describe(made.topology, made.shapes[0], kLimits);
      cases.push_back(std::move(made));
    }
  }
  return cases;
}

// Applies `mutate` to each step of each rank of each case (returns false where it does not apply) and expects a
// complaint each time.
void expect_complaints(int at_least,
                       const std::function<bool(const MutationCase&, Schedule&, std::size_t index)>& mutate) {
  int mutants = 0;
  for (const MutationCase& original : make_cases()) {
    ASSERT_EQ(check_schedules(original.topology, original.shapes, original.schedules, kLimits), "") << original.name;
    for (std::size_t rank = 0; rank < original.schedules.size(); ++rank) {
      for (std::size_t index = 0; index < original.schedules[rank].steps.size(); ++index) {
        auto schedules = original.schedules;
        if (!mutate(original, schedules[rank], index)) continue;
        summarise(original.topology, static_cast<int>(rank), schedules[rank]);
        ++mutants;
        ASSERT_NE(check_schedules(original.topology, original.shapes, schedules, kLimits), "")
            << original.name << ", rank " << rank << ", step " << index << "\n"
            << print_schedule(original.schedules[rank], 100);
      }
    }
  }
  EXPECT_GE(mutants, at_least);
}

TEST(ScheduleMutation, DroppedStep) {
  expect_complaints(1000, [](const MutationCase&, Schedule& schedule, std::size_t index) {
    if (is_fence(schedule.steps[index])) return false;
    drop_step(schedule, index);
    return true;
  });
}

TEST(ScheduleMutation, RepeatedStep) {
  expect_complaints(1000, [](const MutationCase&, Schedule& schedule, std::size_t index) {
    const Step step = schedule.steps[index];
    if (step.kind == StepKind::kCopy) return false;
    const std::size_t lane = lane_of(schedule, index);
    schedule.steps.insert(schedule.steps.begin() + static_cast<std::ptrdiff_t>(index), step);
    ++schedule.lanes[lane].count;
    for (std::size_t later = lane + 1; later < schedule.lanes.size(); ++later) ++schedule.lanes[later].first;
    const bool only_local =
        step.kind == StepKind::kReduce && std::all_of(schedule.sources.begin() + step.first_source,
                                                      schedule.sources.begin() + step.first_source + step.source_count,
                                                      [](const Source& source) { return source.peer < 0; });
    return !only_local;  // folding one's own contribution again changes nothing
  });
}

TEST(ScheduleMutation, SwappedFrames) {
  expect_complaints(100, [](const MutationCase&, Schedule& schedule, std::size_t index) {
    if (index + 1 == schedule.steps.size() || lane_of(schedule, index) != lane_of(schedule, index + 1)) return false;
    Step& a = schedule.steps[index];
    Step& b = schedule.steps[index + 1];
    const bool moves = a.kind == StepKind::kSend || a.kind == StepKind::kReceive;
    const bool same_channel = moves && a.kind == b.kind && a.peer == b.peer && a.flow == b.flow;
    const bool result_then_send = a.kind == StepKind::kReduce && b.kind == StepKind::kSend;
    if (!same_channel && !result_then_send) return false;
    std::swap(a, b);
    return true;
  });
}

TEST(ScheduleMutation, ForgottenDependency) {
  expect_complaints(50, [](const MutationCase&, Schedule& schedule, std::size_t index) {
    Step& step = schedule.steps[index];
    if (step.after_lane < 0) return false;
    step.after_lane = -1;
    step.after_steps = 0;
    return true;
  });
}

TEST(ScheduleMutation, DependencyOneStepShort) {
  expect_complaints(50, [](const MutationCase&, Schedule& schedule, std::size_t index) {
    Step& step = schedule.steps[index];
    if (step.after_lane < 0) return false;
    --step.after_steps;
    return true;
  });
}

// Where two lanes share a ring of scratch slots, a slot must not be written again before it was read.
TEST(ScheduleMutation, ForgottenWaitForScratch) {
  const Topology topology = Topology::from_labels(test::make_labels({20, 2}, test::Order::kBlocks));
  const auto shapes = test::make_shapes(topology, Operation::kReduce, DataType::kFloat32, 64 * 120, 21, false);
  const auto schedules = test::build_all(topology, shapes, kLimits);
  ASSERT_EQ(check_schedules(topology, shapes, schedules, kLimits), "");
  int mutants = 0;
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    for (std::size_t index = 0; index < schedules[rank].steps.size() && mutants < 40; ++index) {
      if (!is_fence(schedules[rank].steps[index])) continue;
      auto mutated = schedules;
      drop_step(mutated[rank], index);
      ++mutants;
      const std::string fault = check_schedules(topology, shapes, mutated, kLimits);
      EXPECT_NE(fault.find("without an order"), std::string::npos)
          << fault << " rank " << rank << ", step " << index << "\n"
          << print_schedule(schedules[rank], 100);
    }
  }
  EXPECT_GT(mutants, 0);
}

TEST(ScheduleMutation, WrongRange) {
  for (const int what : {0, 1, 2, 3}) {
    expect_complaints(500, [&](const MutationCase&, Schedule& schedule, std::size_t index) {
      Step& step = schedule.steps[index];
      if (step.range.bytes == 0) return false;
      if (step.kind == StepKind::kReduce && step.range.space == Space::kScratch)
        return false;  // scratch may be anywhere
      if (what == 0) step.range.offset += 4;
      if (what == 1) step.range.bytes -= 4;
      if (what == 2) step.range.segment += 1;
      if (what == 3) step.position += 4;
      return what != 3 || step.kind == StepKind::kSend || step.kind == StepKind::kReceive;
    });
  }
}

TEST(ScheduleMutation, WrongPeerOrFlow) {
  for (const bool flow : {false, true}) {
    expect_complaints(500, [&](const MutationCase& original, Schedule& schedule, std::size_t index) {
      Step& step = schedule.steps[index];
      if (step.kind != StepKind::kSend && step.kind != StepKind::kReceive) return false;
      if (flow) step.flow = step.flow == Flow::kUp ? Flow::kDown : Flow::kUp;
      if (!flow) step.peer = (step.peer + 1) % original.topology.size;
      return true;
    });
  }
}

TEST(ScheduleMutation, WrongFold) {
  for (const int what : {0, 1, 2, 3, 4}) {
    expect_complaints(100, [&](const MutationCase&, Schedule& schedule, std::size_t index) {
      Step& step = schedule.steps[index];
      if (step.kind != StepKind::kReduce) return false;
      Source* sources = &schedule.sources[step.first_source];
      if (what == 0) step.raw = !step.raw;
      if (what == 1) step.final = !step.final;
      if (what == 2) sources[step.source_count - 1] = sources[0];
      if (what == 3) std::swap(sources[0], sources[step.source_count - 1]);
      if (what == 4) --step.source_count;
      return step.source_count > 1 || what < 2;
    });
  }
}

TEST(ScheduleMutation, WrongSummary) {
  MutationCase made = make_cases()[18 * 2 + 1];
  const auto complains = [&](const std::function<void(Schedule&)>& mutate) {
    auto schedules = made.schedules;
    mutate(schedules[0]);
    return check_schedules(made.topology, made.shapes, schedules, kLimits);
  };
  ASSERT_EQ(complains([](Schedule&) {}), "");
  EXPECT_NE(complains([](Schedule& schedule) { schedule.sent_bytes_bridge += 4; }), "");
  EXPECT_NE(complains([](Schedule& schedule) { schedule.peers.pop_back(); }), "");
  EXPECT_NE(complains([](Schedule& schedule) { schedule.lanes[0].bridge = !schedule.lanes[0].bridge; }), "");
  EXPECT_NE(complains([](Schedule& schedule) { schedule.lanes.back().count -= 1; }), "");
  EXPECT_NE(complains([](Schedule& schedule) { schedule.steps[0].after_lane = 100; }), "");
  EXPECT_NE(complains([](Schedule& schedule) { schedule.steps[0].peer = 0; }), "");
  EXPECT_NE(check_schedules(made.topology, made.shapes, {}, kLimits), "");
}

// One lane's frames to a peer spread over two lanes could leave in any order.
TEST(ScheduleMutation, SplitLane) {
  const Topology topology = Topology::from_labels({"a", "a"});
  const auto shapes = test::make_shapes(topology, Operation::kAllToAll, DataType::kFloat32, 150, -1, false);
  auto schedules = test::build_all(topology, shapes, kLimits);
  auto& lanes = schedules[0].lanes;
  const Lane whole = lanes[0];
  ASSERT_GT(whole.count, 1u);
  lanes[0].count = 1;
  lanes.insert(lanes.begin() + 1, {whole.first + 1, whole.count - 1, whole.bridge});
  EXPECT_NE(check_schedules(topology, shapes, schedules, kLimits).find("shares its peer and flow"), std::string::npos);
}

// Two ranks that both receive before they send.
TEST(ScheduleMutation, DeadlockNamesTheBlockedSteps) {
  const Topology topology = Topology::from_labels({"a", "b"});
  const auto shapes = test::make_shapes(topology, Operation::kAllReduce, DataType::kFloat32, 3, -1, false);
  auto schedules = test::build_all(topology, shapes, kLimits);
  for (Schedule& schedule : schedules) std::swap(schedule.steps[0], schedule.steps[1]);
  const std::string fault = check_schedules(topology, shapes, schedules, kLimits);
  EXPECT_NE(fault.find("deadlock: rank 0, lane 0: fold"), std::string::npos) << fault;
  EXPECT_NE(fault.find("; rank 1, lane 0: fold"), std::string::npos) << fault;
}

// Both ranks send all chunks before they take any: correct while the window holds them all, a deadlock otherwise.
TEST(ScheduleMutation, DeadlockByCredit) {
  const Topology topology = Topology::from_labels({"a", "a"});
  const auto shapes = test::make_shapes(topology, Operation::kAllToAll, DataType::kFloat32, 64 * 3, -1, false);
  auto schedules = test::build_all(topology, shapes, kLimits);
  for (Schedule& schedule : schedules) {
    const auto first_receive = std::find_if(schedule.lanes.begin(), schedule.lanes.end(), [&](const Lane& lane) {
      return schedule.steps[lane.first].kind == StepKind::kReceive;
    });
    ASSERT_NE(first_receive, schedule.lanes.end());
    ASSERT_EQ(schedule.steps[schedule.lanes[0].first].kind, StepKind::kSend);
    Step& step = schedule.steps[first_receive->first];
    step.after_lane = 0;
    step.after_steps = schedule.lanes[0].count;
  }
  EXPECT_NE(check_schedules(topology, shapes, schedules, kLimits).find("deadlock"), std::string::npos);
  EXPECT_EQ(check_schedules(topology, shapes, schedules, {256, 4096, 64}), "");
}

// A receive into memory that another lane still sends from: correct out of place, a hazard in place.
TEST(ScheduleMutation, HazardInPlaceOnly) {
  const Topology topology = Topology::from_labels({"a", "a"});
  Shape shape{Operation::kAllReduce, DataType::kFloat32, -1, {16}, {}};
  const std::vector<Shape> shapes{shape, shape};
  auto schedules = test::build_all(topology, shapes, kLimits);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    Schedule& schedule = schedules[rank];
    ASSERT_EQ(schedule.steps.size(), 2u);  // send, fold
    schedule.lanes = {{0, 1, false}, {1, 1, false}};
  }
  EXPECT_NE(check_schedules(topology, shapes, schedules, kLimits).find("without an order"), std::string::npos);
  for (Schedule& schedule : schedules) {
    schedule.steps[1].after_lane = 0;
    schedule.steps[1].after_steps = 1;
  }
  EXPECT_EQ(check_schedules(topology, shapes, schedules, kLimits), "");
}

// Both ends of an exchange fold into what the other one reads, if the call is in place and they lend.
TEST(ScheduleMutation, ExchangeThatLends) {
  const Topology topology = Topology::from_labels({"a", "a"});
  Shape shape{Operation::kAllReduce, DataType::kFloat32, -1, {16}, {}};
  const std::vector<Shape> shapes{shape, shape};
  auto schedules = test::build_all(topology, shapes, kLimits);
  for (Schedule& schedule : schedules) {
    ASSERT_EQ(schedule.steps[0].kind, StepKind::kSend);
    ASSERT_FALSE(schedule.steps[0].lends);
    schedule.steps[0].lends = true;
  }
  EXPECT_NE(check_schedules(topology, shapes, schedules, kLimits).find("without an order"), std::string::npos);
}

}  // namespace
}  // namespace atl::collectives
