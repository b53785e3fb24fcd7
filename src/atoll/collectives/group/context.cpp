// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/group/context.h"

#include <cstring>

#include "atoll/collectives/control_message.h"
#include "atoll/collectives/group/context_impl.h"
#include "atoll/core/fd.h"

namespace atl::collectives {
namespace {

constexpr std::size_t kMaxReports = 64;

template <class T>
void keep(std::deque<T>& list, T item) {
  if (list.size() == kMaxReports) list.pop_front();
  list.push_back(std::move(item));
}

}  // namespace

Context::Impl::Impl(transport::EndpointOptions options) : process(fork_depth()), has_key(!options.key.empty()) {
  endpoint = std::make_unique<transport::Endpoint>(std::move(options), *this);
  dump_slot = watch_dump_signal(endpoint->loop(), [this] { dump_groups(); });
}

Context::Impl::~Impl() {
  // A forked child has no loop thread to stop; the endpoint handles this case itself.
  if (fork_depth() != process) return;
  unwatch_dump_signal(endpoint->loop(), dump_slot);
  endpoint->shutdown(Deadline::after(std::chrono::seconds(5)));
  endpoint.reset();
}

void Context::Impl::add_group(std::uint64_t group_id, std::weak_ptr<GroupSink> group) {
  std::vector<FailedLink> failed;
  std::vector<EarlyReport> early;
  {
    const std::lock_guard lock(mutex);
    groups[group_id] = group;
    failed = failed_links;
    for (const EarlyReport& report : early_reports) {
      if (report.group_id == group_id) early.push_back(report);
    }
  }
  if (failed.empty() && early.empty()) return;
  endpoint->loop().post([group = std::move(group), failed = std::move(failed), early = std::move(early)] {
    const auto live = group.lock();
    if (!live) return;
    for (const EarlyReport& report : early) live->on_control(*report.link, report.body);
    for (const FailedLink& link : failed) live->on_link_failed(link.peer, link.error, link.closed_in_order);
  });
}

void Context::Impl::remove_group(std::uint64_t group_id) {
  const std::lock_guard lock(mutex);
  groups.erase(group_id);
  ended_groups.insert(group_id);
}

void Context::Impl::set_key_once(const std::vector<std::byte>& key) {
  {
    const std::lock_guard lock(mutex);
    if (has_key) return;
    has_key = true;
  }
  // Without the lock, because set_key() waits for the loop, whose handlers take it.
  endpoint->set_key(key);
}

std::vector<std::shared_ptr<GroupSink>> Context::Impl::live_groups() {
  const std::lock_guard lock(mutex);
  std::vector<std::shared_ptr<GroupSink>> live;
  for (const auto& [id, group] : groups) {
    if (auto strong = group.lock()) live.push_back(std::move(strong));
  }
  return live;
}

void Context::Impl::keep_report(std::vector<std::byte> message) {
  const std::lock_guard lock(mutex);
  keep(reports, std::move(message));
}

void Context::Impl::on_link_open(transport::Link& link) {
  std::deque<std::vector<std::byte>> known;
  {
    const std::lock_guard lock(mutex);
    known = reports;
  }
  for (const auto& report : known) link.send_control(report);
}

void Context::Impl::on_control(transport::Link& link, std::span<const std::byte> message) {
  if (message.size() < kGroupIdBytes) return;
  std::uint64_t id = 0;
  std::memcpy(&id, message.data(), kGroupIdBytes);
  const auto body = message.subspan(kGroupIdBytes);
  std::shared_ptr<GroupSink> group;
  bool ended = false;
  {
    const std::lock_guard lock(mutex);
    const auto found = groups.find(id);
    if (found != groups.end()) group = found->second.lock();
    ended = ended_groups.count(id) > 0;
    if (!group && !ended && control_type(body) == ControlType::kError)
      keep(early_reports, {id, &link, {body.begin(), body.end()}});
  }
  if (group) {
    group->on_control(link, body);
  } else if (ended && control_type(body) == ControlType::kInquiry) {
    link.send_control_after_frames(encode(id, ControlType::kLeft, Report{ErrorKind::kAborted, -1, "left"}));
  }
}

void Context::Impl::on_link_failed(transport::Link& link, const Error& error, bool closed_in_order) {
  {
    const std::lock_guard lock(mutex);
    failed_links.push_back({link.peer(), error, closed_in_order});
  }
  for (const auto& group : live_groups()) group->on_link_failed(link.peer(), error, closed_in_order);
}

void Context::Impl::dump_groups() {
  for (const auto& group : live_groups()) group->on_dump_requested();
}

FoldThreads& Context::Impl::fold_threads(std::size_t count) {
  const std::lock_guard lock(mutex);
  if (!folding) folding = std::make_unique<FoldThreads>(count);
  return *folding;
}

Context::Context(transport::EndpointOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Context::~Context() = default;
transport::Endpoint& Context::endpoint() noexcept { return *impl_->endpoint; }

}  // namespace atl::collectives
