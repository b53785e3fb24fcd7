// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "atoll/collectives/group/group.h"
#include "tests/support/memory_store.h"

namespace atl::test {

struct RankOptions {
  std::vector<std::string> islands;  ///< by rank; its size is the number of ranks
  std::chrono::milliseconds timeout{20000};
  std::chrono::milliseconds heartbeat{30000};
  std::chrono::milliseconds slow_after{20000};
  std::string trace_folder{};
  bool check_data = false;
  collectives::ValueCheck check_values = collectives::ValueCheck::kNone;
  bool flat_reduce = false;
  std::size_t arena_bytes = 0;     ///< budget of each rank's arena; 0: none
  std::vector<double> uplinks;     ///< by rank; empty: none stated
  std::vector<std::string> hosts;  ///< by rank; empty: all on this host
  transport::TransportChoice transport = transport::TransportChoice::kAuto;
};

/// "AABA" -> {"A", "A", "B", "A"}.
std::vector<std::string> layout(const std::string& letters);

/// One group whose ranks are threads of this process, each with an endpoint of its own.
class Ranks {
 public:
  using Body = std::function<void(collectives::Group& group)>;

  explicit Ranks(RankOptions options);
  ~Ranks();

  /// Runs `body` on every rank at once and waits for all. Returns each rank's error text, empty if it succeeded.
  std::vector<std::string> run(const Body& body);

  /// Like run, but fails the current test if a rank throws.
  void run_ok(const Body& body);

  collectives::Group& group(int rank) { return *groups_[static_cast<std::size_t>(rank)]; }
  std::shared_ptr<collectives::Context> context(int rank) { return contexts_[static_cast<std::size_t>(rank)]; }
  MemoryStore& store() { return store_; }
  int size() const { return static_cast<int>(options_.islands.size()); }

  /// Ends a rank as if its process died: its endpoint closes without notice.
  void kill(int rank);

  /// Shuts down every rank that still runs.
  void shut_down();

 private:
  RankOptions options_;
  MemoryStore store_;
  std::vector<std::shared_ptr<collectives::Context>> contexts_;
  std::vector<std::unique_ptr<collectives::Group>> groups_;
};

}  // namespace atl::test
