// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "atoll/json/fields.h"
#include "atoll/plan/operators/operators.h"
#include "atoll/plan/operators/timeline.h"

namespace atl::plan {

/// Reads a model as a list of operators: {"operators": [{"name", "rows", "bytes", "robot": {"fixed", "per_row"},
/// "server": likewise, "operands": [{"producer", "map"}], "state"}], "outputs": [...]}. Absent costs are 0, an absent
/// "state" (Operator::is_state) is false. Maps state which rows of the operand rows [x, y) of the output need: none
/// (all of them), {"kernel", "stride", "padding", "dilation"} (as a convolution's: [x stride - padding, (y - 1) stride
/// - padding + dilation (kernel - 1) + 1)), {"times", "over"} ([x times / over, y times / over), rounded outwards), or
/// {"begin": [...], "end": [...]} (by row of the output). `fields` is the object; the caller must call done(). Throws
/// as check(), and Error(kInvalidArgument) for missing keys.
OperatorGraph read_operators(json::Fields& fields);

/// Writes a model in the form of read_operators: {"operators", "outputs"}. Maps are windows if the rows follow one,
/// otherwise by row. Calls each operand's map for every row.
json::Json write_operators(const OperatorGraph& graph);

/// Reads {"up", "down", "latency", "half_duplex"}: bytes and seconds. "down" defaults to "up", the others to 0 and
/// false. Throws as check(), and Error(kInvalidArgument) for unknown keys.
LinkCost read_link(const json::Json& value);

/// Writes {"policy", "seconds", "robot_busy", "server_busy", "link_busy", "up_bytes", "down_bytes", "joules",
/// "rows_twice", "chunks"}; with `is_whole` also "shares" ([[robot begin, end], [server begin, end]] by operator) and
/// "events" ([lane, operator, begin, end]).
json::Json write_operator_plan(const OperatorPlan& plan, const Timeline& timeline, bool is_whole);

/// Plans a model over a link by several policies, at other rates, and over a recorded link; docs/plan-infer.md
/// describes the JSON of request and answer. Throws Error(kInvalidArgument) that names the key if the request is
/// invalid or a key unknown, and as make_plan() and replay().
std::string plan_operators(const std::string& request);

}  // namespace atl::plan
