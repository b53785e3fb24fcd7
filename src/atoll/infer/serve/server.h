// SPDX-License-Identifier: Apache-2.0
//
// The promises of servers, each proven by the tests that docs/promises.md names:
// I-7: A client without the server's key gets no connection.
// I-8: A worker runs only calls of listed operators whose arguments and shapes the operator's validator has accepted.
// I-9: Each client's model runs in a process of its own, whose death costs other clients nothing.
// I-10: A worker in its sandbox can open no file, reach no network and start no process.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "atoll/core/deadline.h"
#include "atoll/transport/stream/credentials.h"

namespace atl::infer {

struct ServerOptions {
  std::string host = "127.0.0.1";  ///< where to listen; by default, other machines cannot reach it
  std::uint16_t port = 0;          ///< 0: any
  std::shared_ptr<const transport::Credentials> credentials;
  std::string cache_folder;
  std::uint64_t cache_bytes = std::uint64_t{20} << 30;
  std::string worker_program;  ///< atoll_infer_worker
  std::string device = "cpu";
  int threads = 1;        ///< of each worker
  std::size_t turns = 1;  ///< workers that compute at once
  std::size_t most_connections = 256;
  std::size_t most_workers = 64;  ///< processes, one for each client's model; more models wait
  std::uint64_t worker_memory_bytes = std::uint64_t{8} << 30;  ///< of address space beyond what a worker starts with
  /// The maximum of one model's weight file; capped at what workers admit (safety::Limits::weight_bytes).
  std::uint64_t most_model_bytes = std::uint64_t{8} << 30;
  /// The time that one inference may compute without a pause, and that a worker may take to end a cancelled one.
  std::chrono::milliseconds compute_limit{10'000};
  std::chrono::milliseconds start_limit{120'000};  ///< for loading, warming up and timing a model, and for a division
  std::chrono::milliseconds hello_limit{5'000};
  std::chrono::milliseconds upload_limit{60'000};  ///< without a byte of a model that is being uploaded
  std::chrono::milliseconds end_limit{5'000};      ///< for pending disk operations when the server ends
};

/// Counters of a server.
struct ServerCounts {
  std::uint64_t connections = 0;  ///< now
  std::uint64_t workers = 0;      ///< now
  std::uint64_t waiting_models = 0;
  std::uint64_t waiting_inferences = 0;
  std::uint64_t accepted = 0;  ///< since the start, like the following
  std::uint64_t refused = 0;   ///< strangers and misbehaving clients
  std::uint64_t uploads = 0;
  std::uint64_t inferences = 0;
  std::uint64_t failed = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t workers_lost = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  double compute_seconds = 0;
  double waited_seconds = 0;
};

/// Runs parts of models for robots: any number of clients with any number of models, each model of each client in a
/// worker process of its own. One thread moves all bytes, a second one reads and writes the cache, and a third one
/// compares models with their hashes. All functions are thread-safe.
class Server {
 public:
  /// Listens. Throws Error(kUnavailable), which names the address, folder or program that is unusable, and
  /// kInvalidArgument without credentials.
  explicit Server(ServerOptions options);
  /// Ends everything at once, but waits up to `end_limit` for the disk. A thread that a disk does not answer cannot be
  /// ended: it is abandoned with a warning, and the process exits only when the kernel releases that thread. Does
  /// nothing in a forked child.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// "127.0.0.1:4711"
  std::string address() const;
  ServerCounts counts() const;

  /// Stops accepting clients and inferences, notifies the clients, and waits until all running inferences are over.
  /// Returns whether they were before the deadline. `check` is called every 50 ms during the wait, and what it throws
  /// ends it.
  bool drain(Deadline deadline, const std::function<void()>& check = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl::infer
