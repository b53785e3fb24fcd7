// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/run/program.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/infer/run/costs.h"
#include "atoll/plan/numbers.h"
#include "atoll/plan/operators/exchange.h"
#include "atoll/plan/operators/stages.h"

namespace atl::infer {
namespace {

using plan::Side;

using plan::as_index;

bool holds(const std::vector<int>& tensors, int tensor) {
  return std::find(tensors.begin(), tensors.end(), tensor) != tensors.end();
}

// Collects steps, and notes after which of them each tensor is no longer used.
class Steps {
 public:
  Steps(const Graph& graph, const Operators& operators)
      : graph_(graph),
        operators_(operators),
        last_(operators.dims.size(), kNever),
        comes_(operators.dims.size(), false) {}

  void compute(int index, Region rows) {
    using Part = Operators::Part;
    const Operators::Operator& each = operators_.operators[as_index(index)];
    const Step::Kind kind = each.part == Part::kState    ? Step::Kind::kState
                            : each.part == Part::kResult ? Step::Kind::kResult
                                                         : Step::Kind::kCompute;
    steps_.push_back({kind, each.node, rows});
    note(index);
  }
  // Computes a whole node that needs sums by its own call. `index` is the operator of its result, after that of its
  // states.
  void compute_node(int index) {
    const Operators::Operator& each = operators_.operators[as_index(index)];
    steps_.push_back({Step::Kind::kCompute, each.node, {0, each.rows}});
    for (const int tensor : taken_by(graph_, operators_, index - 1)) touch(tensor);
    note(index);
  }
  void move(Step::Kind kind, int tensor, const std::vector<Region>& regions) {
    for (const Region rows : regions) {
      steps_.push_back({kind, tensor, rows});
      touch(tensor);
      if (kind == Step::Kind::kReceive) comes_[as_index(tensor)] = true;
    }
  }

  // The program, in which unused tensors are freed except for `kept`; tensors that are `here` but never used are freed
  // first.
  Program finished(const std::vector<int>& kept, const std::vector<int>& here) {
    std::vector<std::vector<int>> freed(steps_.size() + 1);  // by the number of steps before
    for (int tensor = 0; tensor < static_cast<int>(last_.size()); ++tensor) {
      const std::size_t last = last_[as_index(tensor)];
      if (holds(kept, tensor) || !(comes_[as_index(tensor)] || holds(here, tensor))) continue;
      freed[last == kNever ? 0 : last + 1].push_back(tensor);
    }
    Program program;
    for (std::size_t i = 0; i <= steps_.size(); ++i) {
      if (i > 0) program.steps.push_back(steps_[i - 1]);
      for (const int tensor : freed[i]) program.steps.push_back({Step::Kind::kFree, tensor, {}});
    }
    return program;
  }

 private:
  static constexpr std::size_t kNever = static_cast<std::size_t>(-1);

  void touch(int tensor) { last_[as_index(tensor)] = steps_.size() - 1; }
  void note(int index) {
    for (const int tensor : taken_by(graph_, operators_, index)) touch(tensor);
    for (const int tensor : operators_.operators[as_index(index)].makes) {
      touch(tensor);
      comes_[as_index(tensor)] = true;
    }
  }

  const Graph& graph_;
  const Operators& operators_;
  std::vector<Step> steps_;
  std::vector<std::size_t> last_;  // by tensor, the last step that uses or makes it
  std::vector<bool> comes_;        // by tensor, whether steps make or receive it
};

// The tensors that the robot keeps to the end: outputs for the caller, and inputs for computing what is missing if it
// stops.
std::vector<int> kept_by_robot(const Graph& graph) {
  std::vector<int> kept = outputs_of(graph);
  kept.insert(kept.end(), graph.inputs.begin(), graph.inputs.end());
  return kept;
}

// A side sends as early as it can and waits as late as it can, so the sides cannot deadlock. Suppose that the robot
// waits in operator u for what the server makes in operator p < u, and the server in v for what the robot makes in q <
// v; outputs that the robot waits for at its end count as used by an operator after all others. The server has sent all
// that it makes before v, so p >= v, and likewise q >= u. Then u <= q < v <= p < u, a contradiction. The messages of
// inputs, which the server takes while it streams, are the robot's first steps.
class Writing {
 public:
  Writing(const Graph& graph, const Operators& operators, const Plan& plan, Side side)
      : graph_(graph),
        operators_(operators),
        plan_(plan),
        side_(side),
        lowered_(operator_graph(graph, operators, {}, {})),
        needs_(plan::needs_of(lowered_, plan.shares)),
        stream_(plan::stream_of(lowered_, plan.shares, needs(Side::kServer), plan.chunks)),
        steps_(graph, operators),
        received_(operators.dims.size(), false) {
    for (const Side each : {Side::kRobot, Side::kServer}) find_sent(each);
  }

  Program written() { return side_ == Side::kRobot ? of_robot() : of_server(); }

 private:
  const plan::Needs& needs(Side side) const { return needs_[static_cast<std::size_t>(side)]; }
  std::vector<std::vector<int>>& sent_to(Side side) { return sent_[static_cast<std::size_t>(side)]; }
  Side other() const { return side_ == Side::kRobot ? Side::kServer : Side::kRobot; }
  Region made(int index) const { return plan::made_by(plan_.shares[as_index(index)], side_); }
  int count() const { return static_cast<int>(operators_.operators.size()); }
  int input_tensor(int index) const { return operators_.operators[as_index(index)].makes.front(); }
  // Returns whether this side makes all rows of the operator; or all states and the whole result, so that it needs no
  // states.
  bool makes_all(int index) const { return made(index) == Region{0, operators_.operators[as_index(index)].rows}; }
  bool makes_node(int state) const { return makes_all(state) && makes_all(state + 1); }

  // Of an operator with several outputs, only those that the other side waits for go over the link.
  void find_sent(Side to) {
    std::vector<std::vector<int>>& sent = sent_to(to);
    sent.resize(as_index(count()));
    const auto add = [&](int producer, int tensor) {
      if (!holds(sent[as_index(producer)], tensor)) sent[as_index(producer)].push_back(tensor);
    };
    for (const plan::Await& await : needs(to).awaits) {
      add(await.producer, taken_by(graph_, operators_, await.user)[as_index(await.operand)]);
    }
    if (to == Side::kServer) return;
    for (const int tensor : outputs_of(graph_)) {
      const int producer = operators_.operator_of[as_index(tensor)];
      if (producer < 0 || needs(to).lacks[as_index(producer)].empty()) continue;
      if (!plan_.shares[as_index(producer)].robot.holds(rows_of(graph_, operators_, tensor))) add(producer, tensor);
    }
  }

  void send(int producer) {
    for (const int tensor : sent_to(other())[as_index(producer)]) {
      steps_.move(Step::Kind::kSend, tensor, needs(other()).lacks[as_index(producer)]);
    }
  }

  void receive(int tensor) {
    if (received_[as_index(tensor)]) return;
    received_[as_index(tensor)] = true;
    const int producer = operators_.operator_of[as_index(tensor)];
    if (operators_.operators[as_index(producer)].node >= 0) {
      steps_.move(Step::Kind::kReceive, tensor, needs(side_).lacks[as_index(producer)]);
      return;
    }
    for (const plan::Chunk& chunk : stream_.chunks) {
      if (chunk.input == producer) steps_.move(Step::Kind::kReceive, tensor, chunk.rows);
    }
  }

  // Computes the states that the other side lacks first, and sends them at once.
  void compute_states(int index) {
    std::vector<Region> rest{made(index)};
    for (const Region rows : needs(other()).lacks[as_index(index)]) {
      steps_.compute(index, rows);
      rest = plan::without(rest, rows);
    }
    send(index);
    if (makes_node(index)) return;
    for (const Region rows : rest) steps_.compute(index, rows);
  }

  // Computes the operators from `first` on.
  void compute_from(int first) {
    std::size_t awaited = 0;
    const std::vector<plan::Await>& awaits = needs(side_).awaits;
    for (int i = first; i < count(); ++i) {
      const Operators::Operator& each = operators_.operators[as_index(i)];
      if (each.node < 0 || made(i).is_empty()) continue;
      while (awaited < awaits.size() && awaits[awaited].user < i) ++awaited;
      const std::vector<int> taken = taken_by(graph_, operators_, i);
      for (; awaited < awaits.size() && awaits[awaited].user == i; ++awaited) {
        receive(taken[as_index(awaits[awaited].operand)]);
      }
      if (each.part == Operators::Part::kState) {
        compute_states(i);
        continue;
      }
      if (each.part == Operators::Part::kResult && makes_node(i - 1)) {
        steps_.compute_node(i);
      } else {
        steps_.compute(i, made(i));
      }
      send(i);
    }
  }

  Program of_robot() {
    for (const plan::Chunk& chunk : stream_.chunks) {
      steps_.move(Step::Kind::kSend, input_tensor(chunk.input), chunk.rows);
    }
    compute_from(0);
    for (const int tensor : outputs_of(graph_)) {
      const int producer = operators_.operator_of[as_index(tensor)];
      if (producer >= 0 && holds(sent_to(Side::kRobot)[as_index(producer)], tensor)) receive(tensor);
    }
    return steps_.finished(kept_by_robot(graph_), {});
  }

  Program of_server() {
    if (!stream_.operators.empty()) {
      for (const plan::Chunk& chunk : stream_.chunks) {
        const int tensor = input_tensor(chunk.input);
        received_[as_index(tensor)] = true;
        steps_.move(Step::Kind::kReceive, tensor, chunk.rows);
        for (const plan::OperatorRows& possible : chunk.possible) {
          steps_.compute(possible.index, possible.rows);
          if (possible.rows.end == made(possible.index).end) send(possible.index);
        }
      }
    }
    compute_from(stream_.next);
    return steps_.finished({}, {});
  }

  const Graph& graph_;
  const Operators& operators_;
  const Plan& plan_;
  Side side_;
  plan::OperatorGraph lowered_;
  std::array<plan::Needs, 2> needs_;
  plan::Stream stream_;
  Steps steps_;
  std::vector<bool> received_;                         // by tensor
  std::array<std::vector<std::vector<int>>, 2> sent_;  // by receiver and producer: tensors
};

}  // namespace

Program program_of(const Graph& graph, const Operators& operators, const Plan& plan, Side side) {
  return Writing(graph, operators, plan, side).written();
}

std::vector<std::vector<Region>> rows_to_make(const Graph& graph, const Operators& operators,
                                              const plan::OperatorGraph& lowered,
                                              const std::vector<std::vector<int>>& taken,
                                              const std::vector<std::vector<Region>>& held) {
  std::vector<std::vector<Region>> lacks(held.size());
  const auto need = [&](int tensor, Region rows) {
    std::vector<Region> missing{rows};
    for (const Region here : held[as_index(tensor)]) missing = plan::without(missing, here);
    lacks[as_index(tensor)].insert(lacks[as_index(tensor)].end(), missing.begin(), missing.end());
  };
  for (const int tensor : outputs_of(graph)) {
    if (operators.operator_of[as_index(tensor)] >= 0) need(tensor, rows_of(graph, operators, tensor));
  }
  std::vector<std::vector<Region>> made(operators.operators.size());
  for (std::size_t i = made.size(); i-- > 0;) {
    for (const int tensor : operators.operators[i].makes) {
      made[i].insert(made[i].end(), lacks[as_index(tensor)].begin(), lacks[as_index(tensor)].end());
    }
    if (made[i].empty()) continue;
    made[i] = plan::without(made[i], {});
    for (const Region rows : made[i]) {
      for (std::size_t k = 0; k < taken[i].size(); ++k) {
        const plan::Operand& operand = lowered.operators[i].operands[k];
        need(taken[i][k], plan::rows_needed(operand, rows, lowered.operators[as_index(operand.producer)].rows));
      }
    }
  }
  return made;
}

Program rest_of(const Graph& graph, const Operators& operators, const std::vector<std::vector<Region>>& held) {
  if (held.size() != operators.dims.size()) {
    throw Error(ErrorKind::kInvalidArgument, "rows of " + std::to_string(held.size()) + " tensors are held, of " +
                                                 std::to_string(operators.dims.size()));
  }
  const std::vector<std::vector<Region>> made =
      rows_to_make(graph, operators, operator_graph(graph, operators, {}, {}), taken_by_all(graph, operators), held);
  for (std::size_t i = made.size(); i-- > 0;) {
    if (operators.operators[i].node >= 0 || made[i].empty()) continue;
    throw Error(ErrorKind::kInvalidArgument, "input tensor " + std::to_string(operators.operators[i].makes.front()) +
                                                 " is not wholly held: set all inputs first");
  }
  Steps steps(graph, operators);
  const auto makes_all = [&](std::size_t i) {
    return made[i] == std::vector<Region>{Region{0, operators.operators[i].rows}};
  };
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (operators.operators[i].part == Operators::Part::kState && makes_all(i) && makes_all(i + 1)) {
      steps.compute_node(static_cast<int>(++i));
      continue;
    }
    for (const Region rows : made[i]) steps.compute(static_cast<int>(i), rows);
  }
  std::vector<int> here;
  for (std::size_t tensor = 0; tensor < held.size(); ++tensor) {
    if (!held[tensor].empty()) here.push_back(static_cast<int>(tensor));
  }
  return steps.finished(kept_by_robot(graph), here);
}

}  // namespace atl::infer
