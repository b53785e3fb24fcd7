// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/infer/graph_json.h"
#include "atoll/infer/link/arrivals.h"
#include "atoll/infer/regions.h"
#include "atoll/infer/run/program.h"
#include "atoll/infer/wire/frame.h"

// How a server handles a client's plan and the rows that follow it, for libFuzzer and for a test with mutated bytes.
namespace atl::fuzz {

/// A convolution, a pooling and a mean of all rows, which has a state; and branches of two joined inputs, of which
/// every second row is taken and reversed.
inline const std::vector<infer::Graph>& graphs_to_divide() {
  static const std::vector<infer::Graph> graphs{
      infer::graph_from_json(R"({"atoll_graph":1,"inputs":[0],"weights":[{"tensor":1,"name":"w"}],
"tensors":[{"dtype":"float32","shape":[1,2,12]},{"dtype":"float32","shape":[3,2,3]},{"dtype":"float32","shape":[1,3,12]},
{"dtype":"float32","shape":[1,3,12]},{"dtype":"float32","shape":[1,3,6]},{"dtype":"float32","shape":[1,3,1]}],
"nodes":[{"op":"aten::conv1d","overload":"","args":[{"tensor":0},{"tensor":1},null,{"ints":[1]},{"ints":[1]},{"ints":[1]},1],
"outputs":[2],"list":false},{"op":"aten::relu","overload":"","args":[{"tensor":2}],"outputs":[3],"list":false},
{"op":"aten::max_pool1d","overload":"","args":[{"tensor":3},{"ints":[2]},{"ints":[2]},{"ints":[0]},{"ints":[1]},false],
"outputs":[4],"list":false},
{"op":"aten::mean","overload":"dim","args":[{"tensor":4},{"ints":[2]},true,null],"outputs":[5],"list":false}],
"outputs":[{"tensor":5},{"tensor":3}]})"),
      infer::graph_from_json(R"({"atoll_graph":1,"inputs":[0,1],"weights":[],
"tensors":[{"dtype":"float32","shape":[1,2,8]},{"dtype":"float32","shape":[1,2,8]},{"dtype":"float32","shape":[1,2,8]},
{"dtype":"float32","shape":[1,2,16]},{"dtype":"float32","shape":[1,2,6]},{"dtype":"float32","shape":[1,2,6]}],
"nodes":[{"op":"aten::add","overload":"Tensor","args":[{"tensor":0},{"tensor":1},1],"outputs":[2],"list":false},
{"op":"aten::cat","overload":"","args":[{"tensors":[2,0]},2],"outputs":[3],"list":false},
{"op":"aten::slice","overload":"Tensor","args":[{"tensor":3},2,3,15,2],"outputs":[4],"list":false},
{"op":"aten::flip","overload":"","args":[{"tensor":4},{"ints":[2]}],"outputs":[5],"list":false}],
"outputs":[{"tensor":5},{"tensor":2}]})")};
  return graphs;
}

namespace detail {

using Messages = std::set<std::tuple<int, std::int64_t, std::int64_t>>;  // tensor, begin, end
using Kind = infer::Step::Kind;

// Takes steps until one waits for a message that has not arrived.
inline void advance(const infer::Program& program, std::size_t& next, Messages& incoming, Messages& outgoing) {
  for (; next < program.steps.size(); ++next) {
    const infer::Step& step = program.steps[next];
    const std::tuple message{step.index, step.rows.begin, step.rows.end};
    if (step.kind == Kind::kReceive && incoming.erase(message) == 0) return;
    if (step.kind == Kind::kSend && !outgoing.insert(message).second) std::abort();
  }
}

// Checks that both programs end, and that every message is sent once and received once.
inline void run_both(const infer::Program& robot, const infer::Program& server) {
  Messages up;
  Messages down;
  std::size_t at_robot = 0;
  std::size_t at_server = 0;
  for (;;) {
    const std::size_t before = at_robot + at_server;
    advance(robot, at_robot, down, up);
    advance(server, at_server, up, down);
    if (at_robot + at_server == before) break;
  }
  const bool are_over = at_robot == robot.steps.size() && at_server == server.steps.size();
  if (!are_over || !up.empty() || !down.empty()) std::abort();
}

// Checks that parts are computed from rows that exist.
inline void check_parts(const infer::Graph& graph, const infer::Operators& operators, const infer::Program& program) {
  for (const infer::Step& step : program.steps) {
    if (step.kind != Kind::kCompute) continue;
    const infer::Node& node = graph.nodes[static_cast<std::size_t>(step.index)];
    const int dim = operators.dims[static_cast<std::size_t>(node.outputs.front())];
    if (dim < 0) continue;
    const infer::SlicedCall call = infer::slice(graph, node, dim, step.rows);
    for (const infer::OperandSlice& read : call.operands) {
      if (read.dim < 0) continue;
      const infer::Shape& shape = graph.tensors[static_cast<std::size_t>(read.tensor)].shape;
      if (!Region{0, shape.at(static_cast<std::size_t>(read.dim))}.holds(read.rows)) std::abort();
    }
  }
}

}  // namespace detail

/// A plan as a client may send it: a graph, an input and its dimension, chunks, and shares of small numbers, as many as
/// there are bytes for. It is rejected, or both sides have programs that fit together. Returns whether it was accepted.
inline bool division(std::span<const std::byte> bytes) {
  constexpr std::size_t kHead = 4;
  if (bytes.size() < kHead) return false;
  const auto number = [&](std::size_t at) { return static_cast<int>(std::to_integer<std::int8_t>(bytes[at])); };
  const infer::Graph& graph = graphs_to_divide()[std::to_integer<std::size_t>(bytes[0]) % graphs_to_divide().size()];
  infer::Plan asked;
  asked.input_tensor = number(1);
  asked.dim = number(2);
  asked.chunks = number(3);
  for (std::size_t at = kHead; at + 4 <= bytes.size(); at += 4) {
    asked.shares.push_back({{number(at), number(at + 1)}, {number(at + 2), number(at + 3)}});
  }
  try {
    const infer::Operators operators = infer::operators_of(graph, asked.input_tensor, asked.dim);
    const infer::Program server = infer::program_of(graph, operators, asked, plan::Side::kServer);
    const infer::Program robot = infer::program_of(graph, operators, asked, plan::Side::kRobot);
    detail::run_both(robot, server);
    detail::check_parts(graph, operators, server);
    const infer::Arrivals arrivals(graph, operators, server);
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalidArgument) std::abort();
    return false;
  }
}

/// Frames of rows as a client may send them to a server that computes everything, with eight bytes each for the fields
/// of the header. They are rejected, or make up the awaited rows. Returns whether they were accepted.
inline bool arrivals(std::span<const std::byte> bytes) {
  using namespace infer;
  constexpr std::size_t kHead = 8;
  const Graph& graph = graphs_to_divide()[0];
  static const Operators operators = operators_of(graph, 0, 2);
  static const Plan offload{
      0, 2, {{{0, 12}, {}}, {{}, {0, 12}}, {{}, {0, 12}}, {{}, {0, 6}}, {{}, {0, 6}}, {{}, {0, 1}}}, 3};
  static const Program program = program_of(graph, operators, offload, plan::Side::kServer);
  Arrivals there(graph, operators, program);
  there.begin(1);
  const std::vector<std::byte> payload(256, std::byte{7});
  try {
    for (; bytes.size() >= kHead; bytes = bytes.subspan(kHead)) {
      const auto number = [&](std::size_t at) { return std::to_integer<int>(bytes[at]); };
      wire::FrameHeader header;
      header.kind = wire::FrameKind::kTensor;
      header.id = static_cast<std::uint64_t>(number(0) % 4);
      header.tensor = number(1) % 8;
      header.rows_begin = number(2);
      header.rows_end = number(3);
      header.codec = static_cast<wire::Codec>(number(4) % 7);
      header.message_bytes = static_cast<std::uint32_t>(number(5));
      header.offset = static_cast<std::uint64_t>(number(6));
      header.payload_bytes = static_cast<std::uint32_t>(number(7));
      const auto ack = there.take(header, std::span(payload).first(header.payload_bytes));
      if (ack && ack->bytes != header.message_bytes) std::abort();
    }
    for (const Step& step : program.steps) {
      if (step.kind != Step::Kind::kReceive) continue;
      const auto got = there.wait(step.index, step.rows, Deadline::after(std::chrono::nanoseconds(0)));
      const Tensor type = type_of_rows(graph.tensors[static_cast<std::size_t>(step.index)], 2, step.rows);
      if (got && got->bytes.size() != static_cast<std::size_t>(type.bytes())) std::abort();
    }
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kProtocol) std::abort();
    return false;
  }
}

}  // namespace atl::fuzz
