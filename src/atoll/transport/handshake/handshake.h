// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/transport/auth.h"
#include "atoll/transport/endpoint.h"
#include "atoll/transport/stream/credentials.h"

namespace atl::transport {

/// The version of everything that travels on links; both ends of a connection must have the same.
inline constexpr std::uint16_t kWireVersion = 2;
inline constexpr std::size_t kMaxHandshakeBytes = 4096;  ///< of one message's body
inline constexpr std::size_t kMaxJobBytes = 256;

/// The reason why an acceptor refuses a connection; travels in clear so that the other side can report it.
enum class Refusal : std::uint8_t {
  kNone = 0,
  kVersion,    ///< other wire version; the value is the refuser's
  kJob,        ///< other job
  kAttempt,    ///< other restart attempt; the value is the refuser's
  kPeer,       ///< another process listens at this address now
  kKey,        ///< the proof does not fit the key
  kTransport,  ///< the two ends disagree on shm or tcp
  kYield,      ///< both connected at once and the refuser's own connection wins
  kGone,       ///< the refuser's end of this link has ended already
  kGarbage,    ///< bytes of another protocol
};
const char* to_string(Refusal refusal) noexcept;

/// One end's part of a handshake. Borrowed members must outlive the handshake.
struct HandshakeIdentity {
  const std::string& job;
  std::uint32_t attempt = 0;
  const PeerAddress& self;
  std::vector<std::byte> key;
  LinkKind kind = LinkKind::kTcp;
  std::uint8_t rail = 0;  ///< initiator: 0 opens a link; N joins the open link as its rail N - 1
  std::shared_ptr<const Credentials> credentials{};  ///< for TLS around everything; null: in clear
};

/// A mutual challenge over a byte stream, as a state machine without a socket:
///
///   initiator                                 acceptor
///   HELLO  kind rail attempt job target nonce address  -->
///                                      <--    CHALLENGE  nonce address
///   PROOF  HMAC(key, "initiator", both)       -->          (owner decides: welcome or refuse)
///                                      <--    WELCOME  HMAC(key, "acceptor", both)
///
/// The HMAC covers every byte of HELLO and CHALLENGE, hence version, job, attempt, both ids, both nonces and the roles,
/// so neither a replayed nor a reflected message fits. Instead of its next message an acceptor may send REFUSAL.
class Handshake {
 public:
  enum class State {
    kAwaitHello,      ///< acceptor
    kAwaitProof,      ///< acceptor
    kProven,          ///< acceptor: the initiator is genuine; welcome() or refuse() comes next
    kAwaitChallenge,  ///< initiator
    kAwaitWelcome,    ///< initiator
    kDone,
    kRefused,
  };

  static Handshake acceptor(HandshakeIdentity identity) { return {std::move(identity), State::kAwaitHello, {}}; }
  static Handshake initiator(HandshakeIdentity identity, const PeerId& target);

  State state() const noexcept { return state_; }
  const std::shared_ptr<const Credentials>& credentials() const noexcept { return identity_.credentials; }

  /// The number of bytes that receive() takes next; reading no more than these leaves the link's own bytes on the
  /// stream. 0 in the states that await no bytes.
  std::size_t wanted() const noexcept { return wanted_ - input_.size(); }

  /// Takes at most wanted() bytes from the stream. Throws Error(kRefused), or Error(kProtocol) for bytes that do not
  /// parse; then the state is kRefused, and take_output() may hold the refusal for the peer.
  void receive(std::span<const std::byte> bytes);

  /// Returns the bytes to send, in order.
  std::vector<std::byte> take_output() { return std::exchange(output_, {}); }

  void welcome();                                         ///< in state kProven
  void refuse(Refusal refusal, std::uint32_t value = 0);  ///< acceptor, in any state
  Refusal refusal() const noexcept { return refusal_; }   ///< given or received

  /// The other end as its own message states it; trustworthy in kProven and kDone.
  const PeerAddress& peer() const noexcept { return peer_; }

  /// The initiator's HandshakeIdentity::rail, on both sides; trustworthy in the same states.
  std::uint8_t rail() const noexcept { return identity_.rail; }

 private:
  Handshake(HandshakeIdentity identity, State state, PeerId target);

  void on_header();
  void on_message();
  void on_hello(std::span<const std::byte> body);
  void on_challenge(std::span<const std::byte> body);
  void on_proof(std::span<const std::byte> body);
  void on_refusal(std::span<const std::byte> body);
  void send(std::uint8_t type, std::span<const std::byte> body);
  void await(State state);
  [[noreturn]] void turn_away(Refusal refusal, std::uint32_t value, const std::string& message);
  Mac mac(const char* role) const;

  HandshakeIdentity identity_;
  State state_;
  PeerId target_;
  PeerAddress peer_;
  Refusal refusal_ = Refusal::kNone;
  std::size_t wanted_;
  std::uint8_t type_ = 0;         // of the message whose body is awaited
  std::vector<std::byte> input_;  // the message so far, with its header
  std::vector<std::byte> output_;
  std::vector<std::byte> hello_;  // whole messages, for the HMAC
  std::vector<std::byte> challenge_;
};

}  // namespace atl::transport
