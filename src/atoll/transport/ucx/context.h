// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "atoll/transport/direct.h"

namespace atl::transport::ucx {

/// UCX in this process: the library, opened at run time, and the devices that it found on this machine. Any thread.
class Context {
 public:
  /// Throws Error(kUnavailable) naming what is missing and how to install it.
  static std::shared_ptr<Context> open();
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// Returns whether a network device here moves bytes without the processor.
  bool has_rdma() const noexcept;

  /// Returns whether it supports memory of that kind.
  bool knows(MemoryKind kind) const noexcept;

  /// Returns "UCX 1.13.1", for messages.
  const std::string& version() const noexcept;

  struct Impl;
  Impl& impl() noexcept { return *impl_; }

 private:
  explicit Context(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Returns whether the system has a network device for which UCX is worth opening. Costs a lookup in sysfs.
bool system_has_rdma() noexcept;

/// Memory that devices may read and write directly as long as this object exists: pinned, and registered with them. On
/// the loop of the link that uses it. In a forked child the destructor does nothing.
class Registration {
 public:
  /// Throws Error(kUnavailable).
  Registration(std::shared_ptr<Context> context, void* data, std::size_t bytes, MemoryKind kind);
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  struct Impl;
  const Impl& impl() const noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl::transport::ucx
