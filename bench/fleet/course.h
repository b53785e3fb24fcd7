// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "atoll/plan/operators/operators.h"
#include "atoll/plan/operators/timeline.h"

namespace atl::plan::fleet {

/// One inference as other robots observe it: what each side computes without interruption between messages, and the
/// messages. Parts are numbered through all messages; a message that is not streamed has one.
struct Course {
  struct Message {
    Lane lane = Lane::kUp;
    double bytes = 0;
    std::vector<double> bytes_after;  ///< by part: the bytes of the message after it
    int first_part = 0;
    bool is_input = false;   ///< it can be sent at the start
    bool is_output = false;  ///< the robot waits for it as a result
  };
  /// Computation of one side without waiting.
  struct Leg {
    std::vector<int> parts;  ///< that must have arrived first
    double seconds = 0;
    int message = -1;        ///< that can be sent afterwards; -1: none
    bool is_output = false;  ///< it gives the robot an output
  };
  std::vector<Message> messages;  ///< inputs, then others upwards, then those downwards, each in the graph's order
  std::vector<Leg> robot;
  std::vector<Leg> server;
  int parts = 0;
};

/// Returns the course of a plan, with the same messages and the same order of computing as in simulate(), whose
/// requirements on the arguments apply.
Course course_of(const OperatorGraph& graph, std::span<const Share> shares, int chunks);

}  // namespace atl::plan::fleet
