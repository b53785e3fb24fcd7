// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/direct.h"
#include "atoll/transport/ucx/context.h"
#include "atoll/transport/ucx/wire.h"

namespace atl::transport::ucx {

/// One transfer: it and its bytes must not be changed from the call to the worker until the worker calls finish.
class Operation {
 public:
  /// Called once, on the loop, perhaps inside the call that started the transfer. `problem` is nullptr when it is
  /// complete; `bytes` is the size of a tagged receive. Must not destroy the worker. May throw Error, which becomes its
  /// trouble.
  virtual void finish(const Error* problem, std::size_t bytes) = 0;

 protected:
  ~Operation() = default;
};

/// The bytes that a transfer reads or writes. A registration spares the library a lookup.
struct Place {
  void* data = nullptr;
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  const Registration* registration = nullptr;
};

/// A received message, inside WorkerSink::on_message. It is dropped unless it is read there.
class Incoming {
 public:
  virtual std::size_t bytes() const noexcept = 0;
  /// Reads all of its bytes into `to`, which must have room for them. At most once.
  virtual void read(const Place& to, Operation& operation) = 0;

 protected:
  ~Incoming() = default;
};

/// Receives a worker's messages. Called on the loop, inside Worker::progress.
class WorkerSink {
 public:
  virtual ~WorkerSink() = default;
  /// May throw Error, which becomes the worker's trouble.
  virtual void on_message(MessageKind kind, std::span<const std::byte> note, Incoming& message) = 0;
};

/// One process's end of one link inside UCX. Each link has a worker of its own, so that a peer that died in the middle
/// of transfers can be removed with all of them. Everything is called on the loop.
///
///   Call progress until it returns false, then arm. If arm returns false, repeat; else wait for descriptor().
///
/// While a peer takes nothing of what UCX holds for it, arm keeps returning false: then try again by a timer.
class Worker {
 public:
  /// Throws Error(kUnavailable).
  Worker(std::shared_ptr<Context> context, WorkerSink& sink);

  /// Ends every transfer with an error, at once and without notifying the peer. Does nothing in a forked child.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Returns the address for the peer's connect().
  std::vector<std::byte> address() const;

  /// For epoll; owned by UCX.
  int descriptor() const noexcept;

  /// Connects to the peer. Between two hosts UCX detects a broken path by itself; its transports over shared memory
  /// cannot, so on one host the link's stream does. Throws Error(kUnavailable) when no transport reaches the peer.
  void connect(std::span<const std::byte> peer_address, bool same_host);

  /// Starts to send; `note` must not be changed until the operation has finished, which also reports a failure.
  void send(MessageKind kind, std::span<const std::byte> note, const Place& from, Operation& operation);

  /// Send and receive a message by tag, for memory of any kind, directly from place to place. Messages with equal tags
  /// keep their order.
  void send_tagged(std::uint64_t tag, const Place& from, Operation& operation);
  void receive_tagged(std::uint64_t tag, const Place& to, Operation& operation);

  /// Returns whether there was anything to do.
  bool progress();
  bool arm();

  /// The first error, whether or not an operation was told of it too.
  const std::optional<Error>& trouble() const noexcept;

  /// Returns "posix cma", once something was sent.
  std::string transports() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl::transport::ucx
