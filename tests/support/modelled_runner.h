// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/infer/run/runner.h"
#include "tests/support/modelled_graph.h"

namespace atl::infer::test {

/// Runs modelled graphs: a layer takes the time it states, and its values are never computed. As on a GPU, the device
/// works off calls in order while the caller continues; a caller that wants bytes, or waits, waits for the device. Each
/// row has a signature, which follows from the layer, the row and the signatures of the operands' rows that it needs; a
/// tensor's bytes are made from the signatures when they leave for the host, do not compress, and are checked when they
/// come back. So two machines that exchange the right rows produce the bytes that one alone would, and others do not.
class ModelledRunner : public OperatorRunner {
 public:
  /// `speed` divides all times; 0: layers take no time.
  explicit ModelledRunner(Machine machine, double speed = 1);

  std::unique_ptr<Call> prepare(const Graph& graph, const Node& node) override;
  std::vector<Value> run(const Call& call, std::span<const Value> operands, std::span<const Change> changes) override;
  Value from_host(const Tensor& type, const HostBytes& bytes) override;
  HostBytes to_host(const Value& value) override;
  Tensor type_of(const Value& value) const override;
  Value narrow(const Value& value, int dim, Region rows) override;
  Value join(std::span<const Value> parts, int dim) override;
  Value pad(const Value& value, int dim, std::int64_t low, std::int64_t high, double fill) override;
  bool wait_until(Deadline until) override;
  std::string device() const override;

  double busy_seconds() const noexcept { return busy_seconds_; }
  /// Returns the time spent making and checking bytes, which no real device needs.
  double bytes_seconds() const noexcept { return bytes_seconds_; }

 private:
  const Machine machine_;
  const double speed_;
  Clock::time_point free_{};  // when the device has done all it was given
  double busy_seconds_ = 0;
  double bytes_seconds_ = 0;
};

/// Returns the bytes for an input of a modelled graph, different for each seed.
std::vector<std::byte> modelled_input(const Tensor& type, std::uint64_t seed);

}  // namespace atl::infer::test
