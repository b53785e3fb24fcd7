// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/handshake/link_base.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace atl::transport {
namespace {

PeerAddress with_name(PeerAddress peer) {
  if (peer.name.empty()) peer.name = "peer " + to_string(peer.id).substr(0, 8);
  return peer;
}

bool is_final(LinkState state) { return state == LinkState::kFailed || state == LinkState::kClosed; }

}  // namespace

std::chrono::milliseconds tick_interval(const EndpointOptions& options) noexcept {
  using std::chrono::milliseconds;
  return std::clamp(options.heartbeat / 8, milliseconds(5), milliseconds(250));
}

std::chrono::milliseconds answer_patience(const EndpointOptions& options) noexcept {
  // A process that starts on a busy machine may need this long even with a shorter heartbeat.
  constexpr std::chrono::milliseconds kMin{1000};
  return std::max(options.heartbeat, kMin);
}

Clock::duration counted_time(Clock::time_point& last_tick, Clock::time_point now,
                             const EndpointOptions& options) noexcept {
  return std::min<Clock::duration>(now - std::exchange(last_tick, now), 2 * tick_interval(options));
}

std::string one_decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

void check_control(std::span<const std::byte> message, std::size_t limit) {
  if (message.size() <= limit) return;
  throw Error(ErrorKind::kInvalidArgument, "a control message of ", message.size(), " bytes is too long: at most ",
              limit, " are allowed");
}

LinkBase::LinkBase(const LinkOwner& owner, PeerAddress peer) : owner_(owner), peer_(with_name(std::move(peer))) {}

void LinkBase::throw_error() const { throw Error(*error_); }

std::chrono::milliseconds LinkBase::patience_for(std::uint64_t heartbeat_ms) const noexcept {
  constexpr std::uint64_t kDayMs = 86'400'000;  // bounds the arithmetic
  return std::max(options().heartbeat, std::chrono::milliseconds(std::min(heartbeat_ms, kDayMs)));
}

void LinkBase::ring_noted_on_loop() noexcept {
  for (std::size_t bell = 0; bell < kBellCount; ++bell) {
    if (std::exchange(noted_bells_[bell], false)) ring(doorbell().bell(static_cast<Bell>(bell)));
  }
}

void LinkBase::refuse_reopening() const {
  throw Error(ErrorKind::kInvalidArgument, "a channel to " + peer_name() + " is opened again after it was closed");
}

void LinkBase::fail_later(const Error& error) {
  loop().post([this, error] { fail_on_loop(error); });
}

void LinkBase::fail_on_loop(const Error& error, bool closed_in_order) {
  if (is_final(state())) return;
  if (leaving_) return close_on_loop(Error(ErrorKind::kAborted, "this rank has shut its links down"));
  finish_on_loop(LinkState::kFailed, error);
  observer().on_link_failed(*this, error, closed_in_order);
}

void LinkBase::close_on_loop(const Error& why) {
  if (is_final(state())) return;
  finish_on_loop(LinkState::kClosed, why);
}

void LinkBase::finish_on_loop(LinkState state, const Error& error) {
  error_ = std::make_unique<const Error>(error);
  state_.store(state, std::memory_order_release);
  teardown_on_loop();
  doorbell().ring_all();
}

void LinkBase::mark_up_on_loop() {
  state_.store(LinkState::kUp, std::memory_order_release);
  doorbell().ring_all();
}

void LinkBase::tick_on_loop(Clock::time_point now) {
  const LinkState current = state();
  if (current == LinkState::kUp) return on_tick_on_loop(now);
  if (current != LinkState::kConnecting) return;
  if (now - created_ < options().connect_timeout) return on_connecting_tick_on_loop(now);
  fail_on_loop(Error(ErrorKind::kPeerLost, peer_name() + " is unreachable: no " + to_string(kind()) + " link within " +
                                               std::to_string(options().connect_timeout.count()) + " ms"));
}

bool ChannelBase::wait_or_throw() const {
  if (is_final(link_base_.state())) link_base_.throw_error();
  return false;
}

void ChannelBase::refuse(const FrameHeader& header, std::size_t payload_bytes) const {
  throw Error(ErrorKind::kInvalidArgument, "a frame of ", payload_bytes, " bytes, announced as ", header.payload_bytes,
              ", on a channel that takes ", max_payload_);
}

void ChannelBase::throw_closed(const char* direction) const {
  throw Error(ErrorKind::kAborted, "the channel ", direction, " ", link_base_.peer_name(), " was closed by this side");
}

void ChannelBase::fail(const Error& error) {
  const Error named(error.kind(), link_base_.peer_name() + ": " + error.what());
  link_base_.fail_later(named);
  throw Error(named);
}

}  // namespace atl::transport
