// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <span>

#include "atoll/core/error.h"
#include "atoll/transport/handshake/link_base.h"
#include "atoll/transport/link.h"

namespace atl::transport {

/// The part of a channel that does not depend on how frames travel: its window, whether it is closed, and the errors of
/// calls. The functions that are not Channel's are for the link.
class ChannelBase : public Channel {
 public:
  ChannelBase(LinkBase& link, const ChannelId& id, std::size_t window_bytes)
      : window_bytes_(window_bytes), link_base_(link), id_(id), max_payload_(max_payload_of(window_bytes)) {}

  std::size_t max_payload() const noexcept final { return max_payload_; }
  std::size_t window_bytes() const noexcept final { return window_bytes_; }
  const ChannelId& id() const noexcept { return id_; }

  /// Marks the channel as requested by this side, not only opened by the peer. With the link's mutex of channels, like
  /// is_claimed.
  void claim() noexcept { is_claimed_ = true; }
  bool is_claimed() const noexcept { return is_claimed_; }

  /// From here on the calls of this side's threads throw Error(kAborted).
  void mark_closed() noexcept { is_closed_.store(true, std::memory_order_release); }
  bool is_closed() const noexcept { return is_closed_.load(std::memory_order_acquire); }

 protected:
  /// The beginning of try_send: returns whether the link is up, false while it connects. Throws the link's error,
  /// Error(kInvalidArgument) for a frame that the channel does not take, Error(kAborted) once it is closed.
  bool may_send(const FrameHeader& header, std::span<const std::byte> payload) const {
    if (link_base_.state() != LinkState::kUp) return wait_or_throw();
    if (payload.size() > max_payload_ || header.payload_bytes != payload.size()) refuse(header, payload.size());
    if (is_closed()) throw_closed("to");
    return true;
  }

  /// All of front(): returns the frame that `look` finds, else nullptr while the link may bring one. `look` returns the
  /// oldest frame or nullptr, and may throw what the peer has done wrong.
  template <class Look>
  const Frame* front_of(const Look& look) {
    if (is_closed()) throw_closed("from");
    if (const Frame* const frame = guarded(look)) return frame;
    const LinkState state = link_base_.state();
    if (state == LinkState::kConnecting || state == LinkState::kUp) return nullptr;
    // The link has ended: everything that arrived is visible now.
    if (const Frame* const frame = guarded(look)) return frame;
    link_base_.throw_error();
  }

  /// Runs `step`; an error of it fails the link, and is thrown with the peer's name.
  template <class Step>
  auto guarded(const Step& step) {
    try {
      return step();
    } catch (const Error& error) {
      fail(error);
    }
  }

  std::size_t window_bytes_;  // constant once the sender uses it

 private:
  bool wait_or_throw() const;
  [[noreturn]] void refuse(const FrameHeader& header, std::size_t payload_bytes) const;
  [[noreturn]] void throw_closed(const char* direction) const;
  [[noreturn]] void fail(const Error& error);

  LinkBase& link_base_;
  const ChannelId id_;
  const std::size_t max_payload_;
  std::atomic<bool> is_closed_{false};
  bool is_claimed_ = false;
};

}  // namespace atl::transport
