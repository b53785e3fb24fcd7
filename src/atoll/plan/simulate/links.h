// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "atoll/plan/simulate/network.h"
#include "atoll/plan/simulate/simulate.h"

namespace atl::plan::simulated {

/// One flow of a transfer.
struct Leg {
  std::vector<int> rails;
  double most = 0;                ///< bytes per second where nothing else is on the rails
  double latency = 0;             ///< after its bytes
  std::vector<double> hop_rates;  ///< of the hops that it goes through in chunks
};

/// The way from one rank to another. Without legs it takes no time.
struct Path {
  int transport = -1;
  bool is_blocking = false;
  double chunk_bytes = 0;
  std::vector<Leg> legs;
};

/// How much longer the last byte takes than the leg's flow: one chunk on all hops but the slowest, and the latency.
double tail_seconds(const Path& path, const Leg& leg, double bytes);
/// Of the path when nothing else is on its rails.
double alone_seconds(const Path& path, double bytes);

/// The ways between the ranks of a plan, and the rails that they need. check() has passed.
class Links {
 public:
  explicit Links(const Plan& plan);

  /// The way for transfers, or for reductions, which go through all hops in one flow. Error(kInvalidArgument) that
  /// names both ranks where no rule fits.
  const Path& path(int from, int to, bool is_reduction);

  FairRails& rails() noexcept { return rails_; }
  /// Of each rail what it is; bytes and shares are not filled in.
  const std::vector<RailUse>& kinds() const noexcept { return kinds_; }

 private:
  struct Ends {
    int from;
    int to;
  };
  const LinkRule& rule(const Ends& ends, bool is_reduction) const;
  Path made(const Ends& ends, bool is_reduction);
  Leg leg(const Hop& hop, const Ends& ends);
  int rail(int kind, int rank, bool is_out);

  const Plan& plan_;
  FairRails rails_;
  std::vector<RailUse> kinds_;
  std::vector<int> hosts_;                           // by rank, the first rank of its host
  std::vector<int> islands_;                         // by rank, the first rank of its island
  std::map<std::tuple<int, int, bool>, int> found_;  // by kind, first rank of those who have it, direction
  std::map<std::tuple<int, int, bool>, Path> paths_;
};

}  // namespace atl::plan::simulated
