// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "atoll/plan/operators/operators.h"
#include "atoll/plan/operators/timeline.h"

namespace atl::plan {

/// One inference as others notice it: what each side computes in one go between messages, and the messages. Parts are
/// numbered through all messages; a message that is not streamed has one.
struct Course {
  struct Message {
    Lane lane = Lane::kUp;
    double bytes = 0;
    std::vector<double> behind;  ///< by part: the bytes of the message that come after it
    int first_part = 0;
    bool is_input = false;   ///< it can be sent at the beginning
    bool is_output = false;  ///< the robot waits for it as for a result
  };
  /// What a side computes without waiting.
  struct Leg {
    std::vector<int> parts;  ///< that have to be there first
    double seconds = 0;
    int message = -1;        ///< that can be sent when it is over
    bool is_output = false;  ///< when it is over the robot has an output
  };
  std::vector<Message> messages;  ///< inputs, then others of the way up, then those down, each in the graph's order
  std::vector<Leg> robot;
  std::vector<Leg> server;
  int parts = 0;
};

/// Of a plan, with the same messages and the same order of computing as in simulate(), whose promises about arguments
/// hold here.
Course course_of(const OperatorGraph& graph, std::span<const Share> shares, int chunks);

}  // namespace atl::plan
