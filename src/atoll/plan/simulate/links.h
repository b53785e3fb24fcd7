// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "atoll/plan/simulate/network.h"
#include "atoll/plan/simulate/simulate.h"

namespace atl::plan::simulated {

/// One flow of a transfer.
struct Leg {
  std::vector<int> rails;
  double most = 0;                ///< bytes per second when the rails are otherwise idle
  double latency = 0;             ///< after its bytes
  std::vector<double> hop_rates;  ///< rates of the hops that it passes in chunks
};

/// The path from one rank to another. Without legs it takes no time.
struct Path {
  int transport = -1;
  bool is_blocking = false;
  double chunk_bytes = 0;
  std::vector<Leg> legs;
};

/// Returns the seconds by which the last byte is later than the end of the leg's flow: one chunk on all hops except the
/// slowest, and the latency.
double tail_seconds(const Path& path, const Leg& leg, double bytes);
/// Returns the seconds of `bytes` over the path when its rails are otherwise idle.
double alone_seconds(const Path& path, double bytes);

/// The paths between the ranks of a plan, and the rails that they use. The plan must pass check().
class Links {
 public:
  explicit Links(const Plan& plan);

  /// Returns the path for transfers, or for reductions, which pass all hops in one flow. Throws Error(kInvalidArgument)
  /// that names both ranks if no rule matches.
  const Path& path(int from, int to, bool is_reduction);

  FairRails& rails() noexcept { return rails_; }
  /// Returns the name, place and direction of each rail; bytes and shares are not filled in.
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
  std::map<std::tuple<int, int, bool>, int> found_;  // by kind, first of the ranks that share it, direction
  std::map<std::tuple<int, int, bool>, Path> paths_;
};

struct ReductionFlow {
  const Leg* leg = nullptr;
  double bytes = 0;
};

/// Flows that run in parallel; the next phase begins when all have ended and the latency has passed.
struct Phase {
  std::vector<ReductionFlow> flows;
  double latency = 0;
};

/// Returns the phases in which `ranks` reduce `bytes`: as a ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce
/// algorithms", 2009), or inside islands, between them and inside again. The legs belong to `links`. No phases for
/// fewer than two ranks or for 0 bytes.
std::vector<Phase> phases_of(const std::vector<int>& ranks, double bytes, const Plan& plan, Links& links);

}  // namespace atl::plan::simulated
