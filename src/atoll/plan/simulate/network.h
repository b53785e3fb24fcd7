// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <queue>
#include <set>
#include <vector>

namespace atl::plan::simulated {

/// Rails that several flows of bytes may use at once. They share by max-min fairness (Bertsekas and Gallager, "Data
/// Networks", section 6.5): no flow can be faster unless one that is no faster gets slower. Time must not decrease.
///
/// A change costs O(c log c) for the c flows that are connected with it through full rails; rails with room for the
/// maximum rates of all their flows connect nothing.
class FairRails {
 public:
  /// Adds a rail with this rate, above 0. Returns its number, from 0.
  int add(double bytes_per_second);

  /// Starts a flow of `bytes`, above 0, over all of `rails` at once, at no more than `most` bytes per second. A rail
  /// that is listed twice carries the bytes twice. Returns the number of the flow, which is reused after it has ended.
  /// Rates are valid after settle().
  int start(const std::vector<int>& rails, double most, double bytes, double now);

  /// Computes the rates again after flows have started or ended at `now`.
  void settle(double now);

  /// Returns when the next flow ends; infinite without flows.
  double next() const noexcept;

  /// Returns the flows that end at `now`, which is at most next(), in the order in which they would have ended.
  std::vector<int> finish(double now);

  double rate(int flow) const { return flows_[static_cast<std::size_t>(flow)].rate; }
  /// Returns the total bytes per second of the flows on `rail`.
  double used(int rail) const;
  double bytes_per_second(int rail) const { return rails_[static_cast<std::size_t>(rail)].capacity; }
  /// Returns the bytes of all flows that have started.
  double carried(int rail) const { return rails_[static_cast<std::size_t>(rail)].carried; }
  int rails() const noexcept { return static_cast<int>(rails_.size()); }

 private:
  struct Ending {
    double time = 0;
    std::uint64_t order = 0;  // insertion order, which breaks ties
    int flow = -1;
    auto operator<=>(const Ending&) const = default;
  };
  struct Flow {
    std::vector<int> rails{};
    double most = 0;   // the smallest of its own and its rails' limits
    double left = 0;   // at `since`
    double since = 0;  // when the rate changed
    double rate = 0;
    Ending ending{};  // at this rate
    bool is_on = false;
    bool is_marked = false;
  };
  struct Rail {
    double capacity = 0;
    double demand = 0;  // sum of its flows' maximum rates
    double carried = 0;
    std::vector<int> flows{};
    bool is_marked = false;
    double left = 0;  // during the computation of rates
    int users = 0;
  };
  struct Share {
    double share;
    int rail;
    auto operator<=>(const Share&) const = default;
  };

  Flow& flow(int index) { return flows_[static_cast<std::size_t>(index)]; }
  Rail& rail(int index) { return rails_[static_cast<std::size_t>(index)]; }
  static bool is_full(const Rail& rail) noexcept { return rail.demand > rail.capacity * (1 + 1e-9); }
  void touch(int rail);
  void end(int flow);
  void connect();
  void share(double now);
  void fix(int flow, double rate, double now);

  std::vector<Flow> flows_;
  std::vector<Rail> rails_;
  std::vector<int> free_;
  std::vector<int> changed_;  // flows whose rate may have changed
  std::vector<int> group_;    // those and all flows connected with them
  std::vector<int> full_;     // rails that connect them
  std::priority_queue<Share, std::vector<Share>, std::greater<>> shares_;
  std::set<Ending> endings_;
  std::uint64_t order_ = 0;
};

}  // namespace atl::plan::simulated
