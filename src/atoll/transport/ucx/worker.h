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

/// One transfer: given to a worker, it and the bytes it is about stay as they are until the worker calls finish.
class Operation {
 public:
  /// Once, on the loop, perhaps inside the call that began the transfer. `problem` is nullptr when it is complete. `bytes`
  /// is what a receive by tag got. Must not touch the worker's life. May throw Error, which becomes the worker's trouble.
  virtual void finish(const Error* problem, std::size_t bytes) = 0;

 protected:
  ~Operation() = default;
};

/// Bytes that a transfer reads or writes. A registration spares the library the search for one.
struct Place {
  void* data = nullptr;
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  const Registration* registration = nullptr;
};

/// A message that has come, inside WorkerSink::on_message. What is not read then is dropped.
class Incoming {
 public:
  virtual std::size_t bytes() const noexcept = 0;
  /// At most once: all of its bytes go to `to`, which has room for them.
  virtual void read(const Place& to, Operation& operation) = 0;

 protected:
  ~Incoming() = default;
};

/// Whoever receives a worker's messages. Called on the loop, inside Worker::progress_on_loop.
class WorkerSink {
 public:
  virtual ~WorkerSink() = default;
  /// May throw Error, which becomes the worker's trouble.
  virtual void on_message(MessageKind kind, std::span<const std::byte> note, Incoming& message) = 0;
};

/// One process's end of one link inside UCX: its messages, and nobody else's, so that a peer that died in the middle of
/// something is got rid of with everything that it left undone. Lives on the loop, all functions included.
///
///   progress until it returns false, arm; when arm returns false, again; else wait until descriptor() is readable.
///
/// While a peer takes nothing of what UCX holds for it, arm goes on to return false: then look again by a timer.
class Worker {
 public:
  /// Throws Error(kUnavailable).
  Worker(std::shared_ptr<Context> context, WorkerSink& sink);

  /// Ends every transfer with an error, at once and without a word to the peer. In a forked child: nothing.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// What the peer connects to.
  std::vector<std::byte> address() const;

  /// For epoll; it stays UCX's own.
  int descriptor() const noexcept;

  /// Between two hosts, UCX is to notice a broken path by itself. Its transports over shared memory cannot, so on one host it
  /// is not asked to: the link's stream tells. Throws Error(kUnavailable) when no transport leads there.
  void connect(std::span<const std::byte> peer_address, bool same_host);

  /// Begins to send; `note` stays as it is until the operation has finished. A failure is told to the operation.
  void send(MessageKind kind, std::span<const std::byte> note, const Place& from, Operation& operation);

  /// A message by tag, for memory of any kind, straight from place to place. Messages with equal tags keep their order.
  void send_tagged(std::uint64_t tag, const Place& from, Operation& operation);
  void receive_tagged(std::uint64_t tag, const Place& to, Operation& operation);

  /// Whether there was anything to do.
  bool progress();
  bool arm();

  /// The first thing that went wrong and was not told to an operation, or was told to it as well.
  const std::optional<Error>& trouble() const noexcept;

  /// "posix cma", once something was sent.
  std::string transports() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl::transport::ucx
