// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace atl::test {

/// A network path in user space: forwards TCP connections to a target, with a path's faults and limits. Point a peer's address at
/// it. All functions are thread-safe and act on open connections too.
class Relay {
 public:
  struct Path {
    double bytes_per_second = 0;         ///< per direction; 0: as fast as it goes
    std::chrono::microseconds delay{0};  ///< per direction
    bool half_duplex = false;            ///< both directions share one rate
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

  /// Forwards nothing more, while both ends' connections stay up and their kernels take what fits.
  void stall();
  void resume();

  /// Ends every open connection.
  void cut(Cut how);

  /// Bytes forwarded so far, both directions.
  std::uint64_t forwarded_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace atl::test
