// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/core/region.h"
#include "atoll/infer/graph.h"
#include "atoll/infer/regions.h"

namespace atl::infer {

/// A tensor on a runner's device, freed with its last reference. Its content does not change.
class DeviceTensor {
 public:
  virtual ~DeviceTensor() = default;
};
using Value = std::shared_ptr<const DeviceTensor>;

/// A node's operator, looked up and with its constant arguments converted.
class Call {
 public:
  virtual ~Call() = default;
};

/// The bytes of a tensor in host memory, row-major without gaps, and the owner that keeps them alive and unchanged.
struct HostBytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

/// Calls operators on one device. One thread at a time. An operator's failure is Error(kInvalidArgument) that names it;
/// lack of memory is Error(kUnavailable).
class OperatorRunner {
 public:
  virtual ~OperatorRunner() = default;

  /// Prepares a call. Throws Error(kUnavailable) for an operator that is not available, kProtocol for arguments that do
  /// not fit its schema. Keeps no reference to its arguments.
  virtual std::unique_ptr<Call> prepare(const Graph& graph, const Node& node) = 0;

  /// Returns the outputs, in the node's order. `operands` are the tensors among the node's arguments in order
  /// (operands_of); `changes` replace arguments. May return before the device has finished.
  virtual std::vector<Value> run(const Call& call, std::span<const Value> operands,
                                 std::span<const Change> changes) = 0;

  /// Makes a tensor from these bytes. Does not copy them if the device computes in host memory and they begin at a
  /// multiple of 64. Throws Error(kInvalidArgument) if the type has another number of bytes.
  virtual Value from_host(const Tensor& type, const HostBytes& bytes) = 0;
  /// The tensor's bytes. Waits for the device. Does not copy a tensor that lies in host memory without gaps.
  virtual HostBytes to_host(const Value& value) = 0;

  /// The tensor's type.
  virtual Tensor type_of(const Value& value) const = 0;
  /// These rows along `dim`, which exist; a view.
  virtual Value narrow(const Value& value, int dim, Region rows) = 0;
  /// Concatenates tensors, at least one, along `dim`.
  virtual Value join(std::span<const Value> parts, int dim) = 0;
  /// Adds `low` rows of `fill` before and `high` rows after.
  virtual Value pad(const Value& value, int dim, std::int64_t low, std::int64_t high, double fill) = 0;

  /// Waits until the device has finished all calls, at most until the deadline; returns whether it has.
  virtual bool wait_until(Deadline until) = 0;
  void wait() { wait_until(Deadline::never()); }
  /// "cpu", "cuda:0"
  virtual std::string device() const = 0;
};

}  // namespace atl::infer
