// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "atoll/plan/json_fields.h"
#include "atoll/plan/operators/operators.h"
#include "atoll/plan/operators/timeline.h"

namespace atl::plan {

/// A model as a list of operators: {"operators": [{"name", "rows", "bytes", "robot": {"fixed", "per_row"}, "server":
/// likewise, "operands": [{"producer", "map"}], "state"}], "outputs": [...]}. Costs that are absent are 0, "state"
/// (Operator::is_state) is false. Maps say which rows
/// of the operand rows [x, y) of the output need: none (all of them), {"kernel", "stride", "padding", "dilation"} (as
/// a convolution's: [x stride - padding, (y - 1) stride - padding + dilation (kernel - 1) + 1)), {"times", "over"}
/// ([x times / over, y times / over), rounded outwards), or {"begin": [...], "end": [...]} (by row of the output).
/// `fields` is the object; the caller ends with done(). Error(kInvalidArgument) as check(), and for what is missing.
OperatorGraph read_operators(Fields& fields);

/// The same, to be read by read_operators: {"operators", "outputs"}. Maps are windows where the rows follow one, else by row. Asks each
/// operand's map for every row.
Json write_operators(const OperatorGraph& graph);

/// {"up", "down", "latency", "half_duplex"}: bytes and seconds; without "down" the same as up, without the others 0 and
/// false. Error(kInvalidArgument) as check(), and for what is unknown.
LinkCost read_link(const Json& value);

/// {"policy", "seconds", "robot_busy", "server_busy", "link_busy", "up_bytes", "down_bytes", "joules", "rows_twice",
/// "chunks"}; with `is_whole` also "shares" ([[robot begin, end], [server begin, end]] by operator) and "events"
/// ([lane, operator, begin, end]).
Json write_operator_plan(const OperatorPlan& plan, const Timeline& timeline, bool is_whole);

}  // namespace atl::plan
