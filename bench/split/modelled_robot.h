// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atoll/infer/bundle/bundle.h"
#include "atoll/infer/profile.h"
#include "atoll/infer/run/operators.h"
#include "atoll/infer/session/session.h"
#include "atoll/plan/operators/timeline.h"
#include "tests/support/modelled_runner.h"

namespace atl::bench {

/// A model that takes the time and makes the bytes of a published one, on the robot's side: it gives a session what it
/// needs, knows the right answers, and predicts how long a divided inference takes if only operators and the link take
/// time.
class ModelledRobot {
 public:
  /// `profile` is the text of a published profile, `input_bytes` the size of its input when it is sent; `speed` divides
  /// the times of both machines' operators. Errors as plan::published_profile.
  ModelledRobot(const std::string& profile, std::optional<std::int64_t> input_bytes, double speed);

  infer::Bundle bundle() const;
  infer::Profile profile() const;
  /// The time of the whole model on the robot.
  double robot_seconds() const noexcept { return exact_.robot_seconds(); }
  double server_seconds() const noexcept { return exact_.server_seconds(); }

  /// Returns the inputs of inference `number`; a few sets are used in turn.
  std::vector<infer::HostBytes> inputs(std::uint64_t number) const;
  /// Returns whether the answers are, byte by byte, what one machine alone computes.
  bool is_answer(std::uint64_t number, const std::vector<infer::HostBytes>& outputs) const;

  /// Predicts the inference with the operators' true times. With `with_frames` tensors include what the wire adds:
  /// headers of frames and of TLS records.
  plan::Timeline timeline(const plan::OperatorPlan& plan, const plan::Channel& link, const plan::RobotPower& power,
                          bool with_frames) const;
  /// Returns the bytes of a message including what the wire adds.
  static double framed(double bytes) noexcept;

 private:
  using Bytes = std::vector<std::byte>;
  std::vector<Bytes> answer_to(const std::vector<Bytes>& inputs) const;

  infer::Graph graph_;
  plan::OperatorGraph exact_;   // as a session lowers it, with the true times of both machines
  plan::OperatorGraph framed_;  // the same with the bytes on the wire
  std::vector<std::vector<Bytes>> inputs_;
  std::vector<std::vector<Bytes>> answers_;
};

}  // namespace atl::bench
