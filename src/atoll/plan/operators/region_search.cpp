// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/region_search.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "atoll/plan/numbers.h"
#include "atoll/plan/operators/cuts.h"
#include "atoll/plan/operators/region_grid.h"
#include "atoll/plan/operators/stages.h"
#include "atoll/plan/operators/timeline.h"
#include "atoll/plan/text.h"

namespace atl::plan {
namespace {

using Clock = std::chrono::steady_clock;

struct Clocks {
  double robot = 0;
  double server = 0;
  double up = 0;  // if the link is half duplex, `up` and `down` are the same
  double down = 0;
};

struct Label {
  Clocks clocks;
  Meeting meeting;
  int before = -1;
};

// By tensor, then by origin: the inputs, then each tensor before; then by cut.
using Passages = std::vector<std::vector<std::vector<Passage>>>;

// Searches one grid, with inputs sent whole or in chunks. Labels of a tensor are final when the tensor before it has
// been processed: all passages lead forward.
class GridSearch {
 public:
  GridSearch(const OperatorGraph& graph, const StageChain& chain, const LinkCost& link,
             const std::vector<Price>& prices, const std::vector<GridTensor>& tensors, Passages& known, int chunks,
             double limit, double slack, Clock::time_point end)
      : graph_(graph),
        chain_(chain),
        link_(link),
        prices_(prices),
        tensors_(tensors),
        passages_(known),
        chunks_(chunks),
        labels_at_(tensors_.size()),
        best_(limit),
        slack_(slack),
        end_(end) {}

  void run() {
    labels_.emplace_back();
    std::vector<int> stages;
    for (std::size_t t = 0; t < tensors_.size() && !is_over_; ++t) {
      const GridTensor& tensor = tensors_[t];
      if (passages_.size() == t) add_passages(stages);
      labels_at_[t].resize(tensor.cuts.size() * tensor.cuts.size());
      up_.resize(tensor.cuts.size());
      down_.resize(tensor.cuts.size());
      carry_on(0, 0, t);
      for (std::size_t from = 0; from < t && !is_over_; ++from) {
        for (const std::vector<int>& labels : labels_at_[from]) {
          for (const int label : labels) carry_on(label, from + 1, t);
        }
      }
      stages.push_back(tensor.stage);
    }
  }

  bool is_over() const noexcept { return is_over_; }
  std::int64_t steps() const noexcept { return steps_; }

  // Returns the best plans below the limit that were found, best first.
  std::vector<std::vector<Meeting>> plans() const {
    constexpr std::size_t kMax = 4;
    std::vector<std::vector<Meeting>> result;
    for (std::size_t i = ends_.size(); i > 0 && result.size() < kMax; --i) {
      std::vector<Meeting>& meetings = result.emplace_back();
      for (int label = ends_[i - 1]; label > 0; label = labels_[as_index(label)].before) {
        meetings.push_back(labels_[as_index(label)].meeting);
      }
      std::reverse(meetings.begin(), meetings.end());
    }
    return result;
  }

 private:
  // Finds the passages to the next tensor, from the exits of these stages.
  void add_passages(const std::vector<int>& stages) {
    const GridTensor& tensor = tensors_[passages_.size()];
    auto& of_tensor = passages_.emplace_back(stages.size() + 1, std::vector<Passage>(tensor.cuts.size()));
    for (std::size_t k = 0; k < tensor.cuts.size(); ++k) {
      const std::vector<Passage> found = passages(graph_, chain_, tensor.stage, tensor.cuts[k], stages);
      for (std::size_t from = 0; from < found.size(); ++from) of_tensor[from][k] = found[from];
    }
  }

  // Computes the seconds on the link for the rows that the sides lack at the start of each passage, -1 if there are
  // none.
  void set_messages(const Label& label, std::size_t from, std::size_t to) {
    const std::vector<Passage>& by_cut = passages_[to][from];
    for (std::size_t k = 0; k < by_cut.size(); ++k) {
      const Passage& passage = by_cut[k];
      up_[k] = down_[k] = -1;
      if (from == 0) {
        if (passage.input_messages > 0) up_[k] = passage.input_bytes / link_.up_bytes_per_second;
        continue;
      }
      const GridTensor& tensor = tensors_[from - 1];
      const auto bytes = [&](Region rows) {
        return tensor.is_state ? tensor.bytes
                               : static_cast<double>(rows.size()) * (tensor.bytes / static_cast<double>(tensor.rows));
      };
      const Region& server = passage.server_needs;
      const Region& robot = passage.robot_needs;
      const Region up{std::max(server.begin, label.meeting.server_end), server.end};
      const Region down{robot.begin, std::min(robot.end, label.meeting.robot_begin)};
      if (!up.is_empty()) up_[k] = bytes(up) / link_.up_bytes_per_second;
      if (!down.is_empty()) down_[k] = bytes(down) / link_.down_bytes_per_second;
    }
  }

  void carry_on(int index, std::size_t from, std::size_t to) {
    const Label label = labels_[as_index(index)];
    if (from > 0 && is_beaten(label.clocks, label.meeting.stage)) return;
    const GridTensor& tensor = tensors_[to];
    set_messages(label, from, to);
    const std::vector<Passage>& by_cut = passages_[to][from];
    // A streamed passage may have ended here only because nothing after it can be computed by rows.
    const bool is_end_of_stream = from > 0 && chunks_ > 1 && label.before == 0 && tensors_[from - 1].is_by_row;
    for (std::size_t end = 0; end < tensor.cuts.size() && !is_over_; ++end) {
      if (!tensor.may_end[end]) continue;
      const Passage& server = by_cut[end];
      for (std::size_t begin = 0; begin <= end; ++begin) {
        if (!tensor.may_begin[begin]) continue;
        const Passage& robot = by_cut[begin];
        // If the rows suffice for the passages that do not stop here, so without a message, one of those is as good.
        if (from > 0 && !is_end_of_stream && server.server_makes <= label.meeting.server_end &&
            robot.robot_makes >= label.meeting.robot_begin) {
          continue;
        }
        Clocks clocks = through(sent(label.clocks, up_[end], down_[begin]), server, robot);
        if (from == 0 && chunks_ > 1 && up_[end] >= 0 && tensor.is_by_row) {
          clocks.server = std::min(clocks.server, streamed(up_[end], server.server_seconds, tensor.server_fixed));
        }
        reach({clocks, {tensor.stage, tensor.cuts[end], tensor.cuts[begin]}, index}, to, end, begin);
      }
    }
    if (Clock::now() > end_) is_over_ = true;
  }

  // Assumes that each chunk makes the same part of the work possible: the last chunk on the link and on the server
  // cannot overlap.
  double streamed(double up, double work, double fixed) const {
    const double chunks = chunks_;
    return link_.latency + std::max(up + work / chunks, up / chunks + work) + fixed * (chunks - 1);
  }

  // Combines the server's half of one passage and the robot's of another, which exchange their states.
  Clocks through(Clocks clocks, const Passage& server, const Passage& robot) const {
    double server_left = server.server_seconds;
    double robot_left = robot.robot_seconds;
    for (std::size_t i = 0; i < server.exchanges.size(); ++i) {
      const StateExchange& of_server = server.exchanges[i];
      const StateExchange& of_robot = robot.exchanges[i];
      clocks.server += server_left - of_server.server_after;
      clocks.robot += robot_left - of_robot.robot_after;
      server_left = of_server.server_after;
      robot_left = of_robot.robot_after;
      clocks = sent(clocks, of_server.server_lacks ? of_server.bytes / link_.up_bytes_per_second : -1,
                    of_robot.robot_lacks ? of_robot.bytes / link_.down_bytes_per_second : -1);
    }
    clocks.server += server_left;
    clocks.robot += robot_left;
    return clocks;
  }

  // A message leaves when its rows are ready and the link is free; its receiver computes after that.
  Clocks sent(const Clocks& before, double up, double down) const {
    Clocks after = before;
    const auto send_up = [&] {
      after.up = std::max(after.up, before.robot) + up;
      if (link_.is_half_duplex) after.down = after.up;
      after.server = std::max(after.server, after.up + link_.latency);
    };
    const bool is_up_first = before.robot <= before.server;
    if (up >= 0 && is_up_first) send_up();
    if (down >= 0) {
      after.down = std::max(after.down, before.server) + down;
      if (link_.is_half_duplex) after.up = after.down;
      after.robot = std::max(after.robot, after.down + link_.latency);
    }
    if (up >= 0 && !is_up_first) send_up();
    return after;
  }

  void reach(Label label, std::size_t to, std::size_t end, std::size_t begin) {
    ++steps_;
    const GridTensor& tensor = tensors_[to];
    if (to + 1 == tensors_.size()) {
      double seconds = label.clocks.robot;
      if (label.meeting.robot_begin > 0) {  // the rest of the output comes down
        const double share = static_cast<double>(label.meeting.robot_begin) / static_cast<double>(tensor.rows);
        const double down = share * tensor.bytes / link_.down_bytes_per_second;
        seconds = std::max(seconds, std::max(label.clocks.down, label.clocks.server) + down + link_.latency);
      }
      if (seconds >= best_) return;
      best_ = seconds;
      ends_.push_back(static_cast<int>(labels_.size()));
      labels_.push_back(label);
      return;
    }
    settle(label.clocks, label.meeting, tensor.rows);
    if (is_beaten(label.clocks, tensor.stage)) return;
    std::vector<int>& others = labels_at_[to][end * tensor.cuts.size() + begin];
    for (const int other : others) {
      if (is_no_later(labels_[as_index(other)].clocks, label.clocks, slack_)) return;
    }
    std::erase_if(others, [&](int other) { return is_no_later(label.clocks, labels_[as_index(other)].clocks, 0); });
    others.push_back(static_cast<int>(labels_.size()));
    labels_.push_back(label);
  }

  // Moves each clock to the earliest time that can matter, which lets more labels dominate others.
  void settle(Clocks& clocks, const Meeting& meeting, std::int64_t rows) const {
    const bool is_all_on_robot = meeting.server_end == 0;
    const bool is_all_on_server = meeting.robot_begin == rows;
    if (link_.is_half_duplex) {
      const double next = is_all_on_robot    ? clocks.robot
                          : is_all_on_server ? clocks.server
                                             : std::min(clocks.robot, clocks.server);
      clocks.up = clocks.down = std::max(clocks.up, next);
    } else {
      clocks.down = std::max(clocks.down, clocks.server);
    }
    if (is_all_on_server) clocks.robot = std::max(clocks.robot, clocks.down + link_.latency);
    if (!link_.is_half_duplex) clocks.up = std::max(clocks.up, clocks.robot);
    if (is_all_on_robot && clocks.server <= clocks.up + link_.latency) clocks.server = 0;
  }

  static bool is_no_later(const Clocks& a, const Clocks& b, double slack) noexcept {
    return a.robot <= b.robot + slack && a.server <= b.server + slack && a.up <= b.up + slack &&
           a.down <= b.down + slack;
  }

  // Returns whether the cheapest rest after the stage ends too late.
  bool is_beaten(const Clocks& clocks, int stage) const noexcept {
    if (clocks.robot >= best_) return true;
    for (const Price& price : prices_) {
      const double spent = price.robot * clocks.robot + price.server * clocks.server + price.up * clocks.up +
                           (link_.is_half_duplex ? 0 : price.down * clocks.down);
      if (spent + price.rest[as_index(stage) + 1] >= best_) return true;
    }
    return false;
  }

  const OperatorGraph& graph_;
  const StageChain& chain_;
  const LinkCost& link_;
  const std::vector<Price>& prices_;
  const std::vector<GridTensor>& tensors_;
  Passages& passages_;
  int chunks_;
  // By tensor: by the server's cut times the number of cuts, plus the robot's cut.
  std::vector<std::vector<std::vector<int>>> labels_at_;
  double best_;
  double slack_;
  Clock::time_point end_;
  std::vector<Label> labels_;  // the first one is the start
  std::vector<int> ends_;      // each better than those before
  bool is_over_ = false;
  std::int64_t steps_ = 0;
  std::vector<double> up_;  // by cut of the current tensor
  std::vector<double> down_;
};

OperatorPlan plan_of(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power, const char* policy,
                     std::vector<Share> shares, int chunks) {
  OperatorPlan plan;
  plan.policy = policy;
  plan.shares = std::move(shares);
  plan.chunks = chunks;
  predict(graph, link, power, plan);
  return plan;
}

}  // namespace

std::vector<OperatorPlan> simple_plans(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power,
                                       int chunks) {
  return {plan_of(graph, link, power, "local", everything_on(Side::kRobot, graph), 1),
          plan_of(graph, link, power, "offload", everything_on(Side::kServer, graph), 1),
          plan_of(graph, link, power, "stream", everything_on(Side::kServer, graph), chunks),
          plan_of(graph, link, power, "cut", best_layer_cut(graph, link), 1)};
}

const OperatorPlan& fastest(std::span<const OperatorPlan> plans) {
  return *std::ranges::min_element(plans, {}, &OperatorPlan::seconds);
}

RegionPlan improve(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power, const OperatorPlan& plan,
                   const FluidBound& bound, const SearchOptions& options) {
  const std::chrono::duration<double> time(std::min(options.seconds, 1e6));
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(time);
  RegionPlan result;
  result.plan = plan;
  result.bound = bound.seconds;
  const StageChain chain = stages_of(graph);
  result.is_searched = !chain.stages.empty() && plan.seconds - bound.seconds > options.least_gap * plan.seconds;
  if (!result.is_searched) return result;
  const std::vector<Price> prices = prices_of(graph, chain, link, bound);
  const std::vector<int> stages = meeting_stages(graph, chain, plan.shares, options.most_meetings);
  std::vector<int> chunkings{1};
  if (options.chunks > 1) chunkings.push_back(options.chunks);
  double limit = plan.seconds * (1 - options.margin);
  const double slack = options.epsilon * plan.seconds / static_cast<double>(stages.size());
  bool is_first = true;
  for (const int parts : options.grids) {
    if (parts < 1) refuse("a grid of the search has " + counted(parts, "part") + ": give at least 1");
    std::vector<GridTensor> tensors = grid_of(graph, chain, stages, parts);
    std::int64_t most_rows = 0;
    for (const GridTensor& tensor : tensors) most_rows = std::max(most_rows, tensor.rows);
    if (!is_first) keep_near(chain, result.plan.shares, options.window, tensors);
    Passages known;
    for (const int chunks : chunkings) {
      GridSearch search(graph, chain, link, prices, tensors, known, chunks, limit, slack, end);
      search.run();
      for (const std::vector<Meeting>& meetings : search.plans()) {
        OperatorPlan found = plan_of(graph, link, power, "regions", shares_through(graph, chain, meetings), chunks);
        if (found.seconds >= limit) continue;
        limit = found.seconds;
        result.plan = std::move(found);
      }
      result.labels += search.steps();
      result.is_complete = !search.is_over();
      if (search.is_over()) return result;
    }
    if (parts >= most_rows) break;
    is_first = false;
  }
  return result;
}

RegionPlan search_regions(const OperatorGraph& graph, const LinkCost& link, const RobotPower& power,
                          const SearchOptions& options) {
  const Clock::time_point begin = Clock::now();
  const std::vector<OperatorPlan> plans = simple_plans(graph, link, power, options.chunks);
  const FluidBound bound = fluid_bound(graph, link);
  SearchOptions left = options;
  left.seconds -= std::chrono::duration<double>(Clock::now() - begin).count();
  return improve(graph, link, power, fastest(plans), bound, left);
}

}  // namespace atl::plan
