// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/fleet.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <set>
#include <string>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/plan/numbers.h"
#include "atoll/plan/operators/replay.h"
#include "atoll/plan/operators/timeline.h"
#include "atoll/plan/text.h"
#include "bench/fleet/shared_medium.h"

namespace atl::plan::fleet {
namespace {

constexpr std::size_t kRobot = 0;
constexpr std::size_t kServer = 1;

struct Arrival {
  double time;
  int message;
  std::size_t mark;
};

struct State {
  const FleetRobot& robot;
  const OperatorPlan& plan;
  const Course& course;

  // The current frame.
  bool is_running = false;
  double came = 0;
  double started = 0;
  double output = 0;
  std::size_t left = 0;  // legs and messages that have not ended
  std::vector<bool> is_there{};
  std::vector<Arrival> arrivals{};  // in transit
  std::size_t leg[2] = {0, 0};
  double end[2] = {kInfinity, kInfinity};          // of the current leg
  std::set<std::pair<double, int>> ready[2] = {};  // by medium: messages waiting for the robot's link
  int on_air[2] = {-1, -1};
  bool has_turn = false;
  double wanted = kInfinity;  // when it requested a turn
  double keeps_until = kInfinity;

  // All frames.
  int started_frames = 0;
  double done = 0;  // when the last one was done
  std::vector<double> latencies{};
  RobotUse sums{};
};

class Events {
 public:
  Events(std::vector<State> states, const Shared& shared, const FleetSpan& span)
      : states_(std::move(states)), shared_(shared), span_(span) {}

  FleetRun run() {
    while (true) {
      settle();
      const double next = next_time();
      if (next == kInfinity) break;
      now_ = std::max(now_, next);
    }
    FleetRun result;
    result.seconds = now_;
    for (State& state : states_) {
      if (state.is_running) throw Error(ErrorKind::kInternal, "a simulated frame waits forever: please report it");
      result.robots.push_back(summed_up(state));
    }
    return result;
  }

 private:
  static const std::vector<Course::Leg>& legs(const State& state, std::size_t side) {
    return side == kRobot ? state.course.robot : state.course.server;
  }
  static std::size_t medium_of(const State& state, int message) {
    return state.robot.link.is_half_duplex || state.course.messages[as_index(message)].lane == Lane::kUp ? 0 : 1;
  }
  static double seconds_of(const State& state, Lane lane, double bytes) {
    const LinkCost& link = state.robot.link;
    return bytes / (lane == Lane::kUp ? link.up_bytes_per_second : link.down_bytes_per_second);
  }

  double next_frame(const State& state) const {
    if (state.is_running || (span_.frames > 0 && state.started_frames >= span_.frames)) return kInfinity;
    const double comes = state.robot.period > 0 ? state.robot.first + state.started_frames * state.robot.period
                                                : std::max(state.robot.first, state.done);
    return span_.seconds > 0 && comes >= span_.seconds ? kInfinity : comes;
  }

  // Processes everything that can happen at this moment, in an order that depends on the order of robots only for
  // turns: computing first, so that a robot's messages are in order of readiness before the next one enters its link.
  void settle() {
    do {
      bool has_moved = true;
      while (has_moved) {
        has_moved = false;
        for (State& state : states_) has_moved = progress(state) || has_moved;
        has_moved = give_turns() || has_moved;
      }
    } while (send());
  }

  double next_time() const {
    double next = std::min(media_[0].next(), media_[1].next());
    for (const State& state : states_) {
      next = std::min({next, next_frame(state), state.end[kRobot], state.end[kServer], state.keeps_until});
      for (const Arrival& arrival : state.arrivals) next = std::min(next, arrival.time);
    }
    return next;
  }

  bool progress(State& state) {
    bool has_moved = false;
    if (next_frame(state) <= now_) {
      begin(state);
      has_moved = true;
    }
    if (!state.is_running) return false;
    has_moved = deliver(state) || has_moved;
    for (const std::size_t side : {kRobot, kServer}) has_moved = compute(state, side) || has_moved;
    if (state.left > 0) return has_moved;
    finish(state);
    return true;
  }

  void begin(State& state) {
    const Course& course = state.course;
    state.came = next_frame(state);
    state.started = state.output = now_;
    state.is_running = true;
    ++state.started_frames;
    state.left = course.messages.size() + course.robot.size() + course.server.size();
    state.is_there.assign(as_index(course.parts), false);
    state.leg[kRobot] = state.leg[kServer] = 0;
    for (int i = 0; i < static_cast<int>(course.messages.size()); ++i) {
      if (course.messages[as_index(i)].is_input) state.ready[medium_of(state, i)].emplace(now_, i);
    }
  }

  bool deliver(State& state) {
    bool has_moved = false;
    for (const Arrival& arrival : state.arrivals) {
      if (arrival.time > now_) continue;
      has_moved = true;
      const Course::Message& message = state.course.messages[as_index(arrival.message)];
      state.is_there[as_index(message.first_part) + arrival.mark] = true;
      if (arrival.mark + 1 < message.bytes_after.size()) continue;
      --state.left;
      if (message.is_output) state.output = now_;
    }
    std::erase_if(state.arrivals, [&](const Arrival& arrival) { return arrival.time <= now_; });
    return has_moved;
  }

  static bool is_ready(const State& state, const Course::Leg& leg) {
    return std::all_of(leg.parts.begin(), leg.parts.end(), [&](int part) { return state.is_there[as_index(part)]; });
  }

  void end_leg(State& state, std::size_t side) {
    const Course::Leg& leg = legs(state, side)[state.leg[side]++];
    state.end[side] = kInfinity;
    --state.left;
    if (leg.message >= 0) state.ready[medium_of(state, leg.message)].emplace(now_, leg.message);
    if (leg.is_output) state.output = now_;
  }

  // Runs the side's legs until one computes, or waits for rows or for a turn of the server.
  bool compute(State& state, std::size_t side) {
    const bool is_server = side == kServer;
    for (bool has_moved = false;; has_moved = true) {
      if (state.end[side] != kInfinity) {
        if (state.end[side] > now_) return has_moved;
        end_leg(state, side);
        continue;
      }
      if (state.leg[side] == legs(state, side).size()) return (is_server && give_up(state)) || has_moved;
      const Course::Leg& leg = legs(state, side)[state.leg[side]];
      if (!is_ready(state, leg)) return (is_server && has_waited(state)) || has_moved;
      if (is_server) {
        state.keeps_until = kInfinity;
        if (!state.has_turn) return wants(state) || has_moved;
        state.sums.on_server += leg.seconds;
      }
      state.end[side] = now_ + leg.seconds;
    }
  }

  // Waits for rows until the turn is given up.
  bool has_waited(State& state) {
    if (!state.has_turn) return false;
    if (state.keeps_until == kInfinity) state.keeps_until = now_ + shared_.patience;
    return state.keeps_until <= now_ && give_up(state);
  }

  bool wants(State& state) {
    if (state.wanted != kInfinity) return false;
    state.wanted = now_;
    waiting_.push_back(&state);
    return true;
  }

  bool give_up(State& state) {
    if (!state.has_turn) return false;
    state.has_turn = false;
    state.keeps_until = kInfinity;
    --computing_;
    return true;
  }

  bool give_turns() {
    bool has_moved = false;
    while (computing_ < shared_.turns && !waiting_.empty()) {
      State& state = *waiting_.front();
      waiting_.pop_front();
      state.has_turn = has_moved = true;
      state.sums.turn_wait += now_ - std::exchange(state.wanted, kInfinity);
      ++state.sums.turns;
      ++computing_;
    }
    return has_moved;
  }

  // Processes messages that have ended on the media; if there are none, starts those that can.
  bool send() {
    bool has_moved = false;
    for (std::size_t medium = 0; medium < 2; ++medium) {
      for (const SharedMedium::Passed& passed : media_[medium].pass(now_)) {
        State& state = states_[passed.sender];
        const int message = state.on_air[medium];
        state.arrivals.push_back({now_ + state.robot.link.latency, message, passed.mark});
        has_moved = true;
        if (!passed.is_last) continue;
        const Course::Message& sent = state.course.messages[as_index(message)];
        state.sums.on_radio += now_ - passed.since;
        state.sums.radio_wait += now_ - passed.since - seconds_of(state, sent.lane, sent.bytes);
        state.on_air[medium] = -1;
      }
    }
    if (has_moved) return true;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      for (std::size_t medium = 0; medium < 2; ++medium) has_moved = start(i, medium) || has_moved;
    }
    return has_moved;
  }

  bool start(std::size_t index, std::size_t medium) {
    State& state = states_[index];
    if (state.on_air[medium] >= 0 || state.ready[medium].empty()) return false;
    const int message = state.ready[medium].begin()->second;
    state.ready[medium].erase(state.ready[medium].begin());
    state.on_air[medium] = message;
    const Course::Message& sent = state.course.messages[as_index(message)];
    std::vector<double> marks;
    for (const double bytes : sent.bytes_after) marks.push_back(seconds_of(state, sent.lane, bytes));
    media_[medium].start(index, seconds_of(state, sent.lane, sent.bytes), std::move(marks), now_);
    return true;
  }

  void finish(State& state) {
    state.is_running = false;
    state.done = now_;
    state.latencies.push_back(state.output - state.came);
    state.sums.frame_wait += state.started - state.came;
    const double sending =
        seconds_of(state, Lane::kUp, state.plan.up_bytes) + seconds_of(state, Lane::kDown, state.plan.down_bytes);
    state.sums.joules += joules(state.robot.power, state.output - state.started, state.plan.robot_busy, sending);
  }

  RobotUse summed_up(State& state) const {
    RobotUse use = state.sums;
    std::vector<double>& latencies = state.latencies;
    use.frames = static_cast<int>(latencies.size());
    use.before_server = use.turn_wait;
    if (now_ > 0) {
      for (double* each : {&use.on_radio, &use.on_server, &use.before_server}) *each /= now_;
    }
    if (latencies.empty()) return use;
    const auto count = static_cast<double>(latencies.size());
    for (double* each : {&use.joules, &use.frame_wait, &use.radio_wait, &use.turn_wait}) *each /= count;
    const Spread spread = spread_of(std::move(latencies));
    use.mean = spread.mean;
    use.p95 = spread.p95;
    return use;
  }

  std::vector<State> states_;
  const Shared& shared_;
  const FleetSpan& span_;
  double now_ = 0;
  SharedMedium media_[2] = {SharedMedium(shared_.airtime), SharedMedium(shared_.airtime)};
  std::deque<State*> waiting_;  // for turns
  int computing_ = 0;
};

std::string name_of(std::size_t robot) { return "robot " + std::to_string(robot); }

}  // namespace

void check(std::span<const FleetRobot> robots, const Shared& shared) {
  if (!(shared.airtime > 0 && shared.airtime <= 1)) {
    refuse("the radio's airtime is " + number(shared.airtime) + ": give a share above 0 and up to 1");
  }
  if (shared.turns < 1) refuse("the server has " + counted(shared.turns, "turn") + " at once: give at least 1");
  require_amount("the server's patience", shared.patience);
  for (std::size_t i = 0; i < robots.size(); ++i) {
    const FleetRobot& robot = robots[i];
    if (!robot.graph) refuse(name_of(i) + " has no graph: give it a model");
    check(*robot.graph);
    check(robot.link);
    require_amount(name_of(i) + "'s period", robot.period);
    require_amount(name_of(i) + "'s first frame", robot.first);
    if (robot.link.is_half_duplex == robots[0].link.is_half_duplex) continue;
    refuse(name_of(i) + "'s link is " + (robot.link.is_half_duplex ? "half" : "full") +
           " duplex, unlike that of robot 0, and they share a radio: give all links the same");
  }
}

FleetSimulator::FleetSimulator(std::span<const FleetRobot> robots, const Shared& shared)
    : robots_(robots.begin(), robots.end()), shared_(shared) {
  check(robots, shared);
  for (std::size_t i = 0; i < robots_.size(); ++i) {
    FleetRobot& robot = robots_[i];
    if (robot.candidates.empty()) refuse(name_of(i) + " has no candidates: give it a plan");
    std::vector<Course>& courses = courses_.emplace_back();
    candidates_.push_back(std::exchange(robot.candidates, {}));
    for (OperatorPlan& plan : candidates_.back()) {
      predict(*robot.graph, robot.link, robot.power, plan);
      courses.push_back(course_of(*robot.graph, plan.shares, plan.chunks));
    }
  }
}

FleetRun FleetSimulator::run(std::span<const std::size_t> choice, const FleetSpan& span) const {
  if (choice.size() != robots_.size()) {
    refuse(counted(choice.size(), "choice") + " for " + counted(robots_.size(), "robot") + ": give one for each");
  }
  if (!(span.seconds > 0 && std::isfinite(span.seconds)) && span.frames < 1) {
    refuse("a simulation of robots has no end: give its seconds or frames");
  }
  std::vector<State> states;
  for (std::size_t i = 0; i < choice.size(); ++i) {
    if (choice[i] >= candidates_[i].size()) {
      refuse(name_of(i) + " has " + counted(candidates_[i].size(), "candidate") + ", but number " +
             std::to_string(choice[i]) + " is chosen, counted from 0");
    }
    const OperatorPlan& plan = candidates_[i][choice[i]];
    if (!(plan.seconds > 0) && robots_[i].period == 0 && span.frames < 1) {
      refuse(
          name_of(i) +
          " takes no time for an inference and has no period: give it a period, or the simulation a number of frames");
    }
    states.push_back(State{robots_[i], plan, courses_[i][choice[i]]});
  }
  return Events(std::move(states), shared_, span).run();
}

}  // namespace atl::plan::fleet
