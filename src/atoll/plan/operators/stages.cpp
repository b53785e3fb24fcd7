// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/operators/stages.h"

#include <algorithm>
#include <utility>

#include "atoll/plan/numbers.h"

namespace atl::plan {
namespace {

// Returns by operator the last one that uses its output; the end for an output that has to be kept until then.
std::vector<int> last_uses(const OperatorGraph& graph, const std::vector<bool>& wanted) {
  const int size = static_cast<int>(graph.operators.size());
  std::vector<int> last(graph.operators.size(), -1);
  for (int v = 0; v < size; ++v) {
    if (!wanted[as_index(v)]) continue;
    for (const Operand& operand : operator_at(graph, v).operands) last[as_index(operand.producer)] = v;
  }
  for (const int output : graph.outputs) {
    if (!operator_at(graph, output).operands.empty()) last[as_index(output)] = size;
  }
  return last;
}

void set_exits(const OperatorGraph& graph, const Stage& stage, std::int64_t cut, std::span<Share> shares) {
  for (const int exit : stage.exits) {
    const std::int64_t rows = operator_at(graph, exit).rows;
    const std::int64_t at = stage.exits.size() == 1 ? cut : cut > 0 ? rows : 0;
    shares[as_index(exit)] = {{at, rows}, {0, at}};
  }
}

void clear(const Stage& stage, std::span<Share> shares) {
  for (const int v : stage.operators) shares[as_index(v)] = {};
}

// Returns the parts of a state that both sides need: each computes that of its own rows.
Share parts_of_state(const OperatorGraph& graph, const Operator& state, const Share& needed,
                     std::span<const Share> shares) {
  const Region all{0, state.rows};
  const int from = state.operands.front().producer;
  if (needed.robot == all && needed.server == all && operator_at(graph, from).rows == state.rows) {
    const Share has = closed(shares[as_index(from)], state.rows);
    if (!has.robot.is_empty() || !has.server.is_empty()) return has;
  }
  return closed(needed, state.rows);
}

// Adds the server's needs of the model's inputs, all of which the robot has.
void add_inputs(const OperatorGraph& graph, const StageChain& chain, std::span<const Share> shares, Passage& passage) {
  for (const int input : chain.inputs) {
    const Operator& made = operator_at(graph, input);
    const std::int64_t rows = shares[as_index(input)].server.size();
    if (rows == 0) continue;
    passage.input_bytes += static_cast<double>(made.bytes) * static_cast<double>(rows) / static_cast<double>(made.rows);
    ++passage.input_messages;
  }
}

}  // namespace

StageChain stages_of(const OperatorGraph& graph) {
  const std::vector<bool> wanted = wanted_operators(graph);
  const std::vector<int> last_use = last_uses(graph, wanted);
  const int size = static_cast<int>(graph.operators.size());
  StageChain chain;
  int used_until = -1;  // of the outputs before the current operator
  int last = -1;
  for (int v = 0; v < size; ++v) {
    if (operator_at(graph, v).operands.empty()) {
      chain.inputs.push_back(v);
      used_until = std::max(used_until, last_use[as_index(v)]);
    } else if (wanted[as_index(v)]) {
      last = v;
    }
  }
  Stage stage;
  for (int v = 0; v <= last; ++v) {
    if (!wanted[as_index(v)] || operator_at(graph, v).operands.empty()) continue;
    stage.operators.push_back(v);
    // An output in the middle must be kept until the end, so nothing after it would be alone.
    const bool is_kept = v != last && last_use[as_index(v)] == size;
    if (used_until <= v && !is_kept) {
      stage.exits = {v};
      stage.rows = operator_at(graph, v).rows;
      chain.stages.push_back(std::move(stage));
      stage = {};
    }
    used_until = std::max(used_until, last_use[as_index(v)]);
  }
  if (stage.operators.empty()) return chain;
  for (const int v : stage.operators) {
    if (last_use[as_index(v)] == size) stage.exits.push_back(v);
  }
  chain.stages.push_back(std::move(stage));
  return chain;
}

double exit_bytes(const OperatorGraph& graph, const Stage& stage) {
  double bytes = 0;
  for (const int exit : stage.exits) bytes += static_cast<double>(operator_at(graph, exit).bytes);
  return bytes;
}

Region rows_needed(const Operand& operand, Region made, std::int64_t rows) {
  if (made.is_empty()) return {};
  return operand.needed ? operand.needed(made) : Region{0, rows};
}

void add_needs(const Operand& operand, const Share& made, std::int64_t rows, Share& from) {
  from.robot = hull(from.robot, rows_needed(operand, made.robot, rows));
  from.server = hull(from.server, rows_needed(operand, made.server, rows));
}

Share closed(const Share& needed, std::int64_t rows) noexcept {
  if (needed.server.is_empty() && needed.robot.is_empty()) return {};
  if (needed.server.is_empty()) return {{0, rows}, {}};
  if (needed.robot.is_empty()) return {{}, {0, rows}};
  return {{needed.robot.begin, rows}, {0, std::max(needed.server.end, needed.robot.begin)}};
}

std::vector<StateLack> compose(const OperatorGraph& graph, const Stage& stage, std::span<Share> shares) {
  std::vector<StateLack> states;
  for (std::size_t i = stage.operators.size(); i-- > 0;) {
    const Operator& made = operator_at(graph, stage.operators[i]);
    Share& share = shares[as_index(stage.operators[i])];
    if (made.is_state) {
      const Share needed = share;
      share = parts_of_state(graph, made, needed, shares);
      states.push_back({stage.operators[i], !share.robot.holds(needed.robot), !share.server.holds(needed.server)});
    } else {
      share = closed(share, made.rows);
    }
    for (const Operand& operand : made.operands) {
      const std::int64_t rows = operator_at(graph, operand.producer).rows;
      add_needs(operand, share, rows, shares[as_index(operand.producer)]);
    }
  }
  std::reverse(states.begin(), states.end());
  return states;
}

std::vector<Passage> passages(const OperatorGraph& graph, const StageChain& chain, int last, std::int64_t cut,
                              std::span<const int> from) {
  std::vector<Passage> result(from.size() + 1);
  std::vector<Share> shares(graph.operators.size());
  set_exits(graph, chain.stages[as_index(last)], cut, shares);
  double server = 0;
  double robot = 0;
  std::vector<StateExchange> exchanges;
  std::size_t next = from.size();
  for (int k = last; k >= 0; --k) {
    const Stage& stage = chain.stages[as_index(k)];
    const std::vector<StateLack> states = compose(graph, stage, shares);
    const double server_later = server;
    const double robot_later = robot;
    std::size_t first = 0;  // of the states that are not passed
    for (const int v : stage.operators) {
      const Share& share = shares[as_index(v)];
      server += operator_at(graph, v).server.seconds(share.server.size());
      robot += operator_at(graph, v).robot.seconds(share.robot.size());
      if (first == states.size() || states[first].index != v) continue;
      const auto place = exchanges.begin() + static_cast<std::ptrdiff_t>(first);
      const auto bytes = static_cast<double>(operator_at(graph, v).bytes);
      exchanges.insert(place, StateExchange{bytes, server, robot, states[first].server, states[first].robot});
      ++first;
    }
    for (std::size_t i = 0; i < first; ++i) {
      exchanges[i].server_after = server_later + (server - exchanges[i].server_after);
      exchanges[i].robot_after = robot_later + (robot - exchanges[i].robot_after);
    }
    if (next == 0 || from[next - 1] != k - 1) continue;
    const int entry = chain.stages[as_index(k - 1)].exits.front();
    const std::int64_t rows = operator_at(graph, entry).rows;
    const Share& needed = shares[as_index(entry)];
    const Share made = closed(needed, rows);
    result[next--] = {needed.server,
                      needed.robot,
                      made.server.end,
                      made.robot.is_empty() ? rows : made.robot.begin,
                      server,
                      robot,
                      0,
                      0,
                      exchanges};
  }
  result[0].server_seconds = server;
  result[0].robot_seconds = robot;
  result[0].exchanges = std::move(exchanges);
  add_inputs(graph, chain, shares, result[0]);
  return result;
}

std::vector<Share> shares_through(const OperatorGraph& graph, const StageChain& chain,
                                  std::span<const Meeting> meetings) {
  std::vector<Share> result(graph.operators.size());
  // The halves of two passages: the robot's rows follow from where its own part begins, the server's from where its
  // part ends.
  std::vector<Share> of_server(graph.operators.size());
  std::vector<Share> of_robot(graph.operators.size());
  for (std::size_t i = meetings.size(); i-- > 0;) {
    const Meeting& meeting = meetings[i];
    const int before = i == 0 ? -1 : meetings[i - 1].stage;
    const Stage& end = chain.stages[as_index(meeting.stage)];
    set_exits(graph, end, meeting.server_end, of_server);
    set_exits(graph, end, meeting.robot_begin, of_robot);
    for (int k = meeting.stage; k > before; --k) {
      const Stage& stage = chain.stages[as_index(k)];
      compose(graph, stage, of_server);
      compose(graph, stage, of_robot);
      for (const int v : stage.operators) {
        const auto at = as_index(v);
        result[at] = {of_robot[at].robot, of_server[at].server};
      }
      clear(stage, of_server);
      clear(stage, of_robot);
    }
  }
  for (const int input : chain.inputs) {
    result[as_index(input)].robot = {0, operator_at(graph, input).rows};
  }
  return result;
}

}  // namespace atl::plan
