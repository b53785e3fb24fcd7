// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace atl::transport::ucx {

/// The negotiation in which two ends of a stream decide whether UCX carries their frames; a state machine without a
/// socket:
///
///   both:  OFFER  secret, own address in UCX, or why there is none     at once
///          (each connects through UCX and sends a probe that way)
///          VOTE   the peer's probe has arrived, or why UCX is not used   if both offers hold addresses
///
/// UCX carries the frames if both votes are yes; each end knows the same two votes. Nothing is read beyond the last
/// message, so that the stream can be handed on.
class Agreement {
 public:
  /// `address` is empty if this end cannot use UCX; then `obstacle` is the reason.
  Agreement(std::uint64_t secret, std::span<const std::byte> address, const std::string& obstacle);

  /// The number of bytes that receive() takes next; 0 once the peer has sent everything.
  std::size_t wanted() const noexcept { return wanted_ - input_.size(); }

  /// Takes at most wanted() bytes of the stream. Throws Error(kProtocol).
  void receive(std::span<const std::byte> bytes);

  /// Returns the bytes to send, in order.
  std::vector<std::byte> take_output() { return std::exchange(output_, {}); }

  /// Returns whether both offers are known and hold addresses: connect to peer_address(), send a probe, then vote.
  bool is_probing() const noexcept { return heard_offer_ && offers_ && theirs_; }
  std::span<const std::byte> peer_address() const noexcept { return peer_address_; }
  std::uint64_t peer_secret() const noexcept { return peer_secret_; }

  /// Votes, once, while probing. An empty `objection` is a yes.
  void vote(const std::string& objection);
  bool has_voted() const noexcept { return has_voted_; }

  bool is_done() const noexcept { return heard_offer_ && (!is_probing() || (has_voted_ && heard_vote_)); }
  bool agreed() const noexcept { return is_done() && is_probing() && objection_.empty(); }

  /// The reason why not, once done: "this end: ..." or "the other end: ...".
  const std::string& objection() const noexcept { return objection_; }

 private:
  void on_offer(std::span<const std::byte> body);
  void on_vote(std::span<const std::byte> body);
  void send(std::uint8_t type, bool yes, std::span<const std::byte> body);
  void object(const char* who, const std::string& why);

  const bool offers_;
  bool theirs_ = false;
  bool heard_offer_ = false;
  bool has_voted_ = false;
  bool heard_vote_ = false;
  std::size_t wanted_;
  std::vector<std::byte> input_;
  std::vector<std::byte> output_;
  std::vector<std::byte> peer_address_;
  std::uint64_t peer_secret_ = 0;
  std::string objection_;
};

}  // namespace atl::transport::ucx
