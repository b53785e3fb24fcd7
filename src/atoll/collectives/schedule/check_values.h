// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "atoll/collectives/topology.h"

namespace atl::collectives::detail {

/// Values of the symbolic check: a rank's contribution, or a fold of such values in order. Equal expressions have equal
/// ids, so equal ids mean equal bits.
class Expressions {
 public:
  using Id = std::int32_t;
  static constexpr Id kNothing = -1;

  /// Returns the contribution of `rank`, as the rank gave it.
  Id contribution(int rank);

  /// Folds `sources`. On a fault (an unwritten source, a contribution twice, raw and folded values mixed, an owner's
  /// result folded again) returns kNothing and describes it in `fault`.
  Id fold(const std::vector<Id>& sources, bool raw, bool final, std::string& fault);

  bool is_contribution(Id id) const { return at(id).sources.empty(); }

  /// Returns the fault of `id` as a result of the whole group: a missing contribution, another order or grouping than
  /// the topology's, no fold by the owner; empty if there is none.
  std::string check_result(const Topology& topology, Id id) const;

  /// Returns "((0 1) 2)".
  std::string print(Id id) const;

 private:
  struct Expression {
    std::vector<Id> sources;  // empty: a contribution
    std::vector<int> ranks;   // ranks that contributed, in the order of folding
    bool final = false;
  };
  const Expression& at(Id id) const { return expressions_[static_cast<std::size_t>(id)]; }
  bool respects_islands(const Topology& topology, Id id) const;

  std::vector<Expression> expressions_;
  std::map<std::vector<Id>, Id> known_;
};

/// The value of a range of memory: an expression over the bytes of `segment` that begin at `origin`.
struct Value {
  Expressions::Id expression = Expressions::kNothing;
  std::uint32_t segment = 0;
  std::uint64_t origin = 0;
};

/// A piece of memory or of a frame with one value.
struct Run {
  std::uint64_t bytes = 0;
  Value value;
};
using Runs = std::vector<Run>;

/// Folds sources of equal length piece by piece. `fault` is set as in Expressions::fold, and also if sources come from
/// different positions.
Runs fold_runs(Expressions& expressions, const std::vector<Runs>& sources, bool raw, bool final, std::string& fault);

}  // namespace atl::collectives::detail
