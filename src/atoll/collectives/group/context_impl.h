// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "atoll/collectives/group/context.h"
#include "atoll/collectives/reduce/fold_threads.h"

namespace atl::collectives {

/// Receives a group's events from the context. Called on the endpoint's loop thread; must not block.
class GroupSink {
 public:
  virtual ~GroupSink() = default;
  virtual void on_control(transport::Link& link, std::span<const std::byte> message) = 0;
  virtual void on_link_failed(const transport::PeerId& peer, const Error& error, bool closed_in_order) = 0;
  virtual void on_dump_requested() = 0;
};

struct Context::Impl final : transport::LinkObserver {
  explicit Impl(transport::EndpointOptions options);
  ~Impl() override;

  /// The group is also notified of links that have failed before.
  void add_group(std::uint64_t group_id, std::weak_ptr<GroupSink> group);
  void remove_group(std::uint64_t group_id);

  /// Sets the endpoint's key unless it has one: the key of the first group holds for all later groups of the process.
  void set_key_once(const std::vector<std::byte>& key);

  /// Keeps `message`, the report of how a group of this process ended, and sends it to every peer that opens a link
  /// later, even while this process is leaving.
  void keep_report(std::vector<std::byte> message);

  void on_control(transport::Link& link, std::span<const std::byte> message) override;
  void on_link_open(transport::Link& link) override;
  void on_link_failed(transport::Link& link, const Error& error, bool closed_in_order) override;
  void dump_groups();

  /// Returns the threads that fold for all groups of this process, made by the first one with that number.
  FoldThreads& fold_threads(std::size_t count);

  struct EarlyReport {
    std::uint64_t group_id;
    transport::Link* link;
    std::vector<std::byte> body;
  };

  struct FailedLink {
    transport::PeerId peer;
    Error error;
    bool closed_in_order;
  };

  const std::uint32_t process;  // fork_depth() of the process whose loop thread this has
  std::mutex mutex;             // guards what follows up to dump_slot
  std::map<std::uint64_t, std::weak_ptr<GroupSink>> groups;
  std::set<std::uint64_t> ended_groups;        // peers may still send inquiries about them
  std::vector<FailedLink> failed_links;        // permanently: later groups are still to be notified
  std::deque<std::vector<std::byte>> reports;  // of this process's groups that failed; the last kMaxReports
  std::deque<EarlyReport> early_reports;       // for groups that do not exist here yet; as many
  bool has_key = false;                        // or is about to have it
  std::unique_ptr<FoldThreads> folding;
  int dump_slot = -1;
  std::unique_ptr<transport::Endpoint> endpoint;  // last: its thread calls the rest

 private:
  std::vector<std::shared_ptr<GroupSink>> live_groups();
};

/// Returns whether this process's key is the content of ATOLL_KEY_FILE, which must be set on all ranks or on none.
bool key_comes_from_file();

}  // namespace atl::collectives
