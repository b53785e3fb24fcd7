// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/course.h"

#include <array>
#include <cstddef>
#include <utility>

#include "atoll/plan/numbers.h"
#include "atoll/plan/operators/exchange.h"
#include "atoll/plan/operators/stages.h"

namespace atl::plan::fleet {
namespace {

std::size_t place(Side side) { return side == Side::kRobot ? 0 : 1; }

class CourseMaker {
 public:
  CourseMaker(const OperatorGraph& graph, std::span<const Share> shares, int chunks)
      : graph_(graph), shares_(shares), needs_(needs_of(graph, shares)), is_output_(shares.size(), false) {
    stream_ = stream_of(graph, shares, needs_[place(Side::kServer)], chunks);
    for (const int output : graph.outputs) is_output_[as_index(output)] = true;
  }

  Course make() {
    for (std::vector<int>& messages : messages_) messages.assign(shares_.size(), -1);
    add_messages(Side::kServer, true);
    add_messages(Side::kServer, false);
    add_messages(Side::kRobot, false);
    is_there_.assign(as_index(course_.parts), false);
    add_legs(Side::kRobot, course_.robot);
    add_legs(Side::kServer, course_.server);
    return std::move(course_);
  }

 private:
  bool is_input(int index) const { return operator_at(graph_, index).is_input(); }

  // The messages to `to`: inputs, or all others.
  void add_messages(Side to, bool of_inputs) {
    for (int i = 0; i < static_cast<int>(shares_.size()); ++i) {
      const std::vector<Region>& lacks = needs_[place(to)].lacks[as_index(i)];
      if (lacks.empty() || is_input(i) != of_inputs) continue;
      messages_[place(to)][as_index(i)] = static_cast<int>(course_.messages.size());
      Course::Message& message = course_.messages.emplace_back();
      message.lane = to == Side::kServer ? Lane::kUp : Lane::kDown;
      const Operator& made = operator_at(graph_, i);
      const auto rows = static_cast<double>(rows_of(lacks));
      message.bytes = message_bytes(made, lacks);
      message.first_part = course_.parts;
      message.is_input = of_inputs;
      message.is_output = to == Side::kRobot && is_output_[as_index(i)];
      if (of_inputs && !stream_.operators.empty()) {
        for (const Chunk& chunk : stream_.chunks) {
          if (chunk.input == i)
            message.bytes_after.push_back(static_cast<double>(chunk.rows_after) / rows * message.bytes);
        }
      } else {
        message.bytes_after.push_back(0);
      }
      course_.parts += static_cast<int>(message.bytes_after.size());
    }
  }

  // Notes the messages that leave `side` when the operator is done.
  int message_from(Side side, int index) const {
    return messages_[place(side == Side::kRobot ? Side::kServer : Side::kRobot)][as_index(index)];
  }

  void add(std::vector<Course::Leg>& legs, std::vector<int> parts, double seconds, int message, bool is_output) {
    if (legs.empty() || !parts.empty() || legs.back().message >= 0 || legs.back().is_output) {
      legs.emplace_back().parts = std::move(parts);
    }
    legs.back().seconds += seconds;
    legs.back().message = message;
    legs.back().is_output = is_output;
  }

  // Notes that the part will have arrived; false if that was known.
  bool take(int part) {
    if (is_there_[as_index(part)]) return false;
    is_there_[as_index(part)] = true;
    return true;
  }

  void add_legs(Side side, std::vector<Course::Leg>& legs) {
    const std::vector<Await>& awaits = needs_[place(side)].awaits;
    std::size_t awaited = 0;
    int first = 0;
    if (side == Side::kServer && !stream_.operators.empty()) {
      add_streamed(legs);
      first = stream_.next;
      while (awaited < awaits.size() && awaits[awaited].user < first) ++awaited;
    }
    for (int i = first; i < static_cast<int>(shares_.size()); ++i) {
      const Region made = made_by(shares_[as_index(i)], side);
      if (made.is_empty() || is_input(i)) continue;
      std::vector<int> parts;
      for (; awaited < awaits.size() && awaits[awaited].user == i; ++awaited) {
        const Course::Message& message =
            course_.messages[as_index(messages_[place(side)][as_index(awaits[awaited].producer)])];
        const int last = message.first_part + static_cast<int>(message.bytes_after.size()) - 1;
        if (take(last)) parts.push_back(last);
      }
      const RowCost& cost = side == Side::kRobot ? operator_at(graph_, i).robot : operator_at(graph_, i).server;
      const bool is_output = side == Side::kRobot && is_output_[as_index(i)];
      add(legs, std::move(parts), cost.seconds(made.size()), message_from(side, i), is_output);
    }
  }

  // Adds a leg for each chunk, and more if a message can leave between.
  void add_streamed(std::vector<Course::Leg>& legs) {
    std::vector<std::size_t> last(shares_.size(), 0);  // the chunk that completes it
    for (std::size_t c = 0; c < stream_.chunks.size(); ++c) {
      for (const OperatorRows& possible : stream_.chunks[c].possible) last[as_index(possible.index)] = c;
    }
    std::vector<int> next(shares_.size(), 0);  // of an input: its chunks that have arrived
    for (std::size_t c = 0; c < stream_.chunks.size(); ++c) {
      const Chunk& chunk = stream_.chunks[c];
      const Course::Message& message =
          course_.messages[as_index(messages_[place(Side::kServer)][as_index(chunk.input)])];
      const int part = message.first_part + next[as_index(chunk.input)]++;
      take(part);
      add(legs, {part}, 0, -1, false);
      for (const OperatorRows& possible : chunk.possible) {
        const double seconds = operator_at(graph_, possible.index).server.seconds(possible.rows.size());
        const bool is_done = last[as_index(possible.index)] == c;
        add(legs, {}, seconds, is_done ? message_from(Side::kServer, possible.index) : -1, false);
      }
    }
  }

  const OperatorGraph& graph_;
  std::span<const Share> shares_;
  std::array<Needs, 2> needs_;
  Stream stream_;
  std::vector<bool> is_output_;
  std::array<std::vector<int>, 2> messages_;  // by the side they go to, and producer
  std::vector<bool> is_there_;                // by part, up to the current leg
  Course course_;
};

}  // namespace

Course course_of(const OperatorGraph& graph, std::span<const Share> shares, int chunks) {
  return CourseMaker(graph, shares, chunks).make();
}

}  // namespace atl::plan::fleet
