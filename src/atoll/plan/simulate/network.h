// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <vector>

namespace atl::plan::simulated {

/// Rails that several flows of bytes may use at once. They share by max-min fairness (Bertsekas and Gallager, "Data
/// Networks", section 6.5): no flow can be faster unless one that is no faster gets slower. Time only goes forwards.
///
/// A change costs O(c log c) for the c flows that are connected with it over rails that are full; rails that have room
/// for all that their flows could do connect nothing.
class FairRails {
 public:
  /// A rail of so many bytes per second, above 0. Returns its number, from 0.
  int add(double bytes_per_second);

  /// Puts `bytes`, above 0, onto all of `rails` at once, at no more than `most` bytes per second. A rail that is named
  /// twice carries them twice. Returns the number of the flow, which is free again when it has ended. Rates hold after
  /// settle().
  int start(const std::vector<int>& rails, double most, double bytes, double now);

  /// Shares the rails anew after flows have begun or ended at `now`.
  void settle(double now);

  /// When the next flow ends; infinite without flows.
  double next();

  /// Flows that end at `now`, which is at most next(), in the order in which they would have ended.
  std::vector<int> finish(double now);

  double rate(int flow) const { return flows_[static_cast<std::size_t>(flow)].rate; }
  /// Bytes per second that flows on `rail` have together.
  double used(int rail) const;
  double bytes_per_second(int rail) const { return rails_[static_cast<std::size_t>(rail)].capacity; }
  /// Bytes of all flows that have begun.
  double carried(int rail) const { return rails_[static_cast<std::size_t>(rail)].carried; }
  int rails() const noexcept { return static_cast<int>(rails_.size()); }

 private:
  struct Flow {
    std::vector<int> rails{};
    double most = 0;   // of its own and of its rails
    double left = 0;   // at `since`
    double since = 0;  // when the rate changed
    double rate = 0;
    std::uint64_t version = 0;  // of the rate
    bool is_on = false;
    bool is_marked = false;
  };
  struct Rail {
    double capacity = 0;
    double demand = 0;  // what its flows could do
    double carried = 0;
    std::vector<int> flows{};
    bool is_marked = false;
    double left = 0;  // while rates are shared
    int users = 0;
  };
  struct Ending {
    double time;
    std::uint64_t order;  // which was first among equals
    int flow;
    std::uint64_t version;
    bool operator>(const Ending& other) const noexcept {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  struct Share {
    double share;
    int rail;
    bool operator>(const Share& other) const noexcept {
      return share != other.share ? share > other.share : rail > other.rail;
    }
  };

  Flow& flow(int index) { return flows_[static_cast<std::size_t>(index)]; }
  Rail& rail(int index) { return rails_[static_cast<std::size_t>(index)]; }
  static bool is_full(const Rail& rail) noexcept { return rail.demand > rail.capacity * (1 + 1e-9); }
  void touch(int rail);
  void end(int flow);
  void connect();
  void share(double now);
  void fix(int flow, double rate, double now);
  void forget_old_endings();

  std::vector<Flow> flows_;
  std::vector<Rail> rails_;
  std::vector<int> free_;
  std::vector<int> changed_;  // flows whose rate may have changed
  std::vector<int> group_;    // those and all that are connected with them
  std::vector<int> full_;     // rails that connect them
  std::priority_queue<Share, std::vector<Share>, std::greater<>> shares_;
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> endings_;
  std::uint64_t order_ = 0;
  std::size_t on_ = 0;
};

}  // namespace atl::plan::simulated
