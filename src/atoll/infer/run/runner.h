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

/// A tensor on a runner's device, which frees it with its last reference. Its content does not change.
class DeviceTensor {
 public:
  virtual ~DeviceTensor() = default;
};
using Value = std::shared_ptr<const DeviceTensor>;

/// A node's operator, found and with its constant arguments converted.
class Call {
 public:
  virtual ~Call() = default;
};

/// A tensor in host memory, row-major without gaps, and what keeps these bytes alive and unchanged.
struct HostBytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

/// Calls operators on one device. One thread at a time. Errors of an operator are Error(kInvalidArgument) that names it;
/// no memory is Error(kUnavailable).
class OperatorRunner {
 public:
  virtual ~OperatorRunner() = default;

  /// Error(kUnavailable) for an operator that is not here, kProtocol where arguments do not fit its schema. Borrows nothing.
  virtual std::unique_ptr<Call> prepare(const Graph& graph, const Node& node) = 0;

  /// The outputs, in the node's order. `operands` are the tensors among the node's arguments in order (operands_of);
  /// `changes` replace arguments. The call may return before the device has finished.
  virtual std::vector<Value> run(const Call& call, std::span<const Value> operands,
                                 std::span<const Change> changes) = 0;

  /// A tensor with these bytes. Not copied where the device computes in host memory and they begin at a multiple of 64.
  /// Error(kInvalidArgument) where the type does not have as many bytes.
  virtual Value from_host(const Tensor& type, const HostBytes& bytes) = 0;
  /// Waits for the device. Not copied where the tensor lies in host memory without gaps.
  virtual HostBytes to_host(const Value& value) = 0;

  /// What the tensor is.
  virtual Tensor type_of(const Value& value) const = 0;
  /// These rows along `dim`, which exist; a view.
  virtual Value narrow(const Value& value, int dim, Region rows) = 0;
  /// Tensors behind each other along `dim`; at least one.
  virtual Value join(std::span<const Value> parts, int dim) = 0;
  /// Rows of `fill` before and behind.
  virtual Value pad(const Value& value, int dim, std::int64_t low, std::int64_t high, double fill) = 0;

  /// Waits until the device has finished all that was called, at most until the deadline; whether it has.
  virtual bool wait_until(Deadline until) = 0;
  void wait() { wait_until(Deadline::never()); }
  /// "cpu", "cuda:0"
  virtual std::string device() const = 0;
};

}  // namespace atl::infer
