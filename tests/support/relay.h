// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "atoll/core/deadline.h"
#include "atoll/plan/operators/trace.h"

namespace atl::test {

/// A network path in user space: forwards TCP connections to a target, with a path's faults and limits. Point a peer's
/// address at it. A byte is due when the path has carried all bytes before it, and none is early. All functions are
/// thread-safe and also affect open connections.
class Relay {
 public:
  struct Path {
    double bytes_per_second = 0;                   ///< per direction; 0: as fast as it goes
    std::chrono::microseconds delay{0};            ///< per direction
    bool half_duplex = false;                      ///< both directions, of all connections, share one rate
    std::chrono::microseconds more_delay_back{0};  ///< from the target
  };
  enum class Cut {
    kEnd,    ///< an end-of-file, as of a process that died
    kReset,  ///< a reset
  };

  /// `target` is "127.0.0.1:4711" or "[::1]:4711".
  explicit Relay(const std::string& target) : Relay(target, Path{}) {}
  Relay(const std::string& target, Path path);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  /// "127.0.0.1:4712"
  std::string address() const;

  void set_path(Path path);
  /// From `begin` on the rates are those of the record, repeated; until then the path's rates apply, and its delay and
  /// duplex always do. Throws std::runtime_error for a record in which nothing passes.
  void replay(const plan::Trace& record, Clock::time_point begin);

  /// Stops forwarding, while both ends' connections stay open and their kernels take what fits.
  void stall();
  void resume();

  /// Ends every open connection.
  void cut(Cut how);
  /// Cuts as soon as `bytes` more have been forwarded to the target, wherever in a message that is. 0: never.
  void cut_after(std::uint64_t bytes, Cut how);

  /// Returns the bytes forwarded so far, in both directions.
  std::uint64_t forwarded_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace atl::test
