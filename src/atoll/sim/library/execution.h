// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "atoll/sim/library/communicator.h"

namespace atl::sim {

/// One rank's part of one operation. Ranks publish their inputs, wait for each other, compare, and then read what they
/// need directly from each other's memory. A rank whose memory is read waits until all have read it.
///   all_reduce, small   each rank folds everything; two waits
///   all_reduce, large   rank r folds slice r into its own buffer, then all read all slices; three waits
///   everything else     each rank reads its own result; two waits
class Execution {
 public:
  Execution(Peers& peers, const MemoryOf& memory_of, int rank, int size, const Call& call);

  /// See Communicator::run(). Error messages do not name operation, sequence and rank.
  Clock::time_point run(Clock::time_point begin);

 private:
  using Sources = std::vector<const std::byte*>;
  using Halves = std::vector<std::pair<int, Half>>;  // with the ranks that they belong to

  Clock::time_point collective(Clock::time_point begin);
  Clock::time_point send(Clock::time_point begin);
  Clock::time_point receive(Clock::time_point begin);

  void publish(const Half& half, Clock::time_point begin);
  void require_whole() const;
  void meet(Stage stage);
  void wait_for(const Halves& halves, Stage stage, std::uint64_t sequence);
  [[noreturn]] void lost(const Halves& halves, Stage stage, Control::Outcome outcome) const;

  void move();
  bool folds_everything() const;
  void all_reduce();
  void reduce_to(const Region& output, std::size_t part);
  void read_part(int peer, std::size_t part, const Region& output);

  std::byte* own(const Region& region) const;
  const std::byte* source(int peer, const Region& region);
  Region region_of(int peer, std::size_t part) const;
  Sources sources(std::size_t part);

  Peers& peers_;
  Control& control_;
  const MemoryOf& memory_of_;
  const int rank_;
  const int size_;
  const Call& call_;
  const Deadline deadline_;
};

}  // namespace atl::sim
