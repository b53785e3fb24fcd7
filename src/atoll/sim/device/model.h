// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <string_view>

namespace atl::sim {

/// The rates that one kind of operator reaches on a device.
struct Rates {
  double flops_per_s = 10e9;
  double bytes_per_s = 5e9;  ///< of memory traffic
  double full_s = 0;         ///< the time of work that just fills the device; smaller work takes as long
};

/// A kind of device, at speed 1.
struct DeviceKind {
  Rates usual;                                            ///< of operators without rates of their own
  std::map<std::string, Rates, std::less<>> operators{};  ///< by name, like "addmm"
  double launch_s = 5e-6;                                 ///< added to every operator
  double jitter = 0;        ///< standard deviation of the logarithm of an operator's time; the mean is kept
  double pageable = 1;      ///< rate of copies of memory that is not pinned, relative to others
  double warm_after_s = 0;  ///< continuous work after which the speed is halfway to warm_speed; 0: constant speed
  double warm_speed = 1;    ///< of a fully warm device
};

/// The times that a simulated device takes. Thread-safe.
class Model {
 public:
  using Clock = std::chrono::steady_clock;

  /// `speed`: relative to the kind's; 0: operators take no modelled time. `copy_bytes_per_s`: between host and device,
  /// per direction; 0: copies take no modelled time. `seed`: that of the jitter.
  Model(DeviceKind kind, double speed, double copy_bytes_per_s, std::uint64_t seed);

  /// Returns the time of the next operator, which computes `flops` and touches `bytes` of memory: the largest of the
  /// times of these two and of filling the device, plus the launch. `now`: when it is issued; must not decrease between
  /// calls.
  std::chrono::nanoseconds operator_time(std::string_view name, double flops, double bytes,
                                         Clock::time_point now = Clock::now());

  std::chrono::nanoseconds copy_time(std::size_t bytes, bool is_pinned) const noexcept;

 private:
  double slowness(double busy_s, Clock::time_point now);

  const DeviceKind kind_;
  const double speed_;
  const double copy_bytes_per_s_;
  std::mutex mutex_;
  std::mt19937_64 random_;
  double warmth_ = 0;  // the share of the recent time in which the device worked, 0 to 1
  Clock::time_point warmth_of_{};
};

/// Returns the time of `bytes` at a rate; 0 for a rate of 0.
std::chrono::nanoseconds time_of(double bytes, double bytes_per_s) noexcept;

}  // namespace atl::sim
