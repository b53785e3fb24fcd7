// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/context.h"

#include <cstring>

#include "atoll/collectives/context_impl.h"
#include "atoll/collectives/control_message.h"
#include "atoll/collectives/dump_signal.h"
#include "atoll/core/fd.h"

namespace atl::collectives {

Context::Impl::Impl(transport::EndpointOptions options) : process(fork_depth()), has_key(!options.key.empty()) {
  endpoint = std::make_unique<transport::Endpoint>(std::move(options), *this);
  dump_slot = watch_dump_signal(endpoint->loop(), [this] { dump_groups(); });
}

Context::Impl::~Impl() {
  // A forked child has no loop thread to talk to; the endpoint knows how to end there.
  if (fork_depth() != process) return;
  unwatch_dump_signal(endpoint->loop(), dump_slot);
  endpoint->shutdown(Deadline::after(std::chrono::seconds(5)));
  endpoint.reset();
}

void Context::Impl::add_group(std::uint64_t group_id, std::weak_ptr<GroupSink> group) {
  std::vector<FailedLink> failed;
  {
    const std::lock_guard lock(mutex);
    groups[group_id] = group;
    failed = failed_links;
  }
  if (failed.empty()) return;
  endpoint->loop().post([group = std::move(group), failed = std::move(failed)] {
    const auto live = group.lock();
    for (const FailedLink& link : failed) {
      if (live) live->on_link_failed(link.peer, link.error, link.closed_in_order);
    }
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
  // Without the lock: it waits for the loop, whose handlers take it.
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

void Context::Impl::on_control(transport::Link& link, std::span<const std::byte> message) {
  if (message.size() < kGroupIdBytes) return;
  std::uint64_t id = 0;
  std::memcpy(&id, message.data(), kGroupIdBytes);
  std::shared_ptr<GroupSink> group;
  bool ended = false;
  {
    const std::lock_guard lock(mutex);
    const auto found = groups.find(id);
    if (found != groups.end()) group = found->second.lock();
    ended = ended_groups.count(id) > 0;
  }
  const auto body = message.subspan(kGroupIdBytes);
  if (group) {
    group->on_control(link, body);
  } else if (ended && control_type(body) == ControlType::kInquiry) {
    link.send_control_behind_frames(encode(id, ControlType::kLeft, Report{ErrorKind::kAborted, -1, "left"}));
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

Context::Context(transport::EndpointOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Context::~Context() = default;
transport::Endpoint& Context::endpoint() noexcept { return *impl_->endpoint; }

}  // namespace atl::collectives
