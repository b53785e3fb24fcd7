// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "atoll/transport/direct.h"

namespace atl::transport::ucx {

/// UCX as this process has it: the library, opened at run time, and what it found on this machine. Any thread.
class Context {
 public:
  /// Throws Error(kUnavailable) that says what is missing and how to get it.
  static std::shared_ptr<Context> open();
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// Whether a network device here moves bytes without the processor.
  bool has_rdma() const noexcept;

  /// Whether it knows memory of that kind.
  bool knows(MemoryKind kind) const noexcept;

  /// "UCX 1.13.1", for people.
  const std::string& version() const noexcept;

  struct Impl;
  Impl& impl() noexcept { return *impl_; }

 private:
  explicit Context(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Whether the system has a network device of the kind for which it is worth to open UCX. Costs a look into sysfs.
bool system_has_rdma() noexcept;

/// Memory that devices may read and write directly for as long as this object lives: pinned, and known to them. On the loop of
/// the link that uses it. In a forked child its end does nothing.
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
