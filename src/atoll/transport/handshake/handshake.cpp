// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/handshake/handshake.h"

#include <algorithm>
#include <cstring>

#include "atoll/core/bytes.h"
#include "atoll/transport/address.h"

namespace atl::transport {

namespace {

constexpr std::uint32_t kMagic = 0x4c4f5441;  // "ATOL"
constexpr std::size_t kHeaderBytes = 12;      // magic, version, type, zero, body length

enum MessageType : std::uint8_t { kHello = 1, kChallenge, kProof, kWelcome, kRefusal };

Nonce random_nonce() {
  Nonce nonce;
  fill_random(nonce);
  return nonce;
}

/// Returns whether a TLS record begins with this byte: an alert, or a handshake.
bool is_tls(std::byte first) { return first == std::byte{0x15} || first == std::byte{0x16}; }

void write_address(ByteWriter& writer, const PeerAddress& address) {
  const auto encoded = address.encode();
  writer.integer(static_cast<std::uint16_t>(encoded.size()));
  writer.bytes(encoded);
}

PeerAddress read_address(ByteReader& reader) {
  const std::size_t length = reader.integer<std::uint16_t>();
  return PeerAddress::decode(reader.bytes(length));
}

}  // namespace

const char* to_string(Refusal refusal) noexcept {
  switch (refusal) {
    case Refusal::kNone: return "none";
    case Refusal::kVersion: return "another wire version";
    case Refusal::kJob: return "another job";
    case Refusal::kAttempt: return "another restart attempt";
    case Refusal::kPeer: return "another process listens at this address";
    case Refusal::kKey: return "another key (check ATOLL_KEY_FILE)";
    case Refusal::kTransport: return "another choice of transport (check ATOLL_TRANSPORT and ATOLL_HOST)";
    case Refusal::kYield: return "both sides connected at once";
    case Refusal::kGone: return "its end of the link has ended";
    case Refusal::kGarbage: return "bytes that are not Atoll's handshake";
  }
  return "an unknown reason";
}

Handshake::Handshake(HandshakeIdentity identity, State state, PeerId target)
    : identity_(std::move(identity)), state_(state), target_(target), wanted_(kHeaderBytes) {}

Handshake Handshake::initiator(HandshakeIdentity identity, const PeerId& target) {
  Handshake handshake(std::move(identity), State::kAwaitChallenge, target);
  std::vector<std::byte> body;
  ByteWriter writer(body);
  writer.integer(static_cast<std::uint8_t>(handshake.identity_.kind));
  writer.integer(handshake.identity_.rail);
  writer.integer(handshake.identity_.attempt);
  writer.string(handshake.identity_.job, kMaxJobBytes);
  writer.bytes(std::as_bytes(std::span(target.bytes)));
  writer.bytes(random_nonce());
  write_address(writer, handshake.identity_.self);
  handshake.send(kHello, body);
  handshake.hello_ = handshake.output_;
  return handshake;
}

void Handshake::await(State state) {
  state_ = state;
  input_.clear();
  const bool awaits = state == State::kAwaitHello || state == State::kAwaitProof || state == State::kAwaitChallenge ||
                      state == State::kAwaitWelcome;
  wanted_ = awaits ? kHeaderBytes : 0;
}

void Handshake::send(std::uint8_t type, std::span<const std::byte> body) {
  ByteWriter writer(output_);
  writer.integer(kMagic);
  writer.integer(kWireVersion);
  writer.integer(type);
  writer.integer(std::uint8_t{0});
  writer.integer(static_cast<std::uint32_t>(body.size()));
  writer.bytes(body);
}

void Handshake::refuse(Refusal refusal, std::uint32_t value) {
  std::vector<std::byte> body;
  ByteWriter writer(body);
  writer.integer(static_cast<std::uint8_t>(refusal));
  writer.integer(value);
  send(kRefusal, body);
  refusal_ = refusal;
  await(State::kRefused);
}

void Handshake::turn_away(Refusal refusal, std::uint32_t value, const std::string& message) {
  const bool accepting = state_ == State::kAwaitHello || state_ == State::kAwaitProof;
  if (accepting && refusal != Refusal::kGarbage) {
    refuse(refusal, value);
  } else {
    refusal_ = refusal;
    await(State::kRefused);
  }
  throw Error(refusal == Refusal::kGarbage ? ErrorKind::kProtocol : ErrorKind::kRefused, message);
}

void Handshake::receive(std::span<const std::byte> bytes) {
  while (!bytes.empty() && wanted() > 0) {
    if (input_.empty() && is_tls(bytes.front())) {
      turn_away(Refusal::kGarbage, 0, "it speaks TLS, and this rank does not: ATOLL_TLS must be the same on all ranks");
    }
    const auto part = bytes.first(std::min(bytes.size(), wanted()));
    input_.insert(input_.end(), part.begin(), part.end());
    bytes = bytes.subspan(part.size());
    if (wanted() == 0 && input_.size() == kHeaderBytes) on_header();
    if (wanted() == 0 && !input_.empty()) on_message();
  }
  if (!bytes.empty()) turn_away(Refusal::kGarbage, 0, "more bytes than the handshake expects");
}

void Handshake::on_header() {
  ByteReader reader(input_, "a handshake message");
  const auto magic = reader.integer<std::uint32_t>();
  const auto version = reader.integer<std::uint16_t>();
  type_ = reader.integer<std::uint8_t>();
  const auto zero = reader.integer<std::uint8_t>();
  const auto length = reader.integer<std::uint32_t>();
  if (magic != kMagic) turn_away(Refusal::kGarbage, 0, "the first bytes are not Atoll's");
  if (version != kWireVersion) {
    turn_away(Refusal::kVersion, kWireVersion,
              joined("wire version ", version, " instead of ", kWireVersion, ": run one Atoll version everywhere"));
  }
  const bool expected = (type_ == kHello && state_ == State::kAwaitHello) ||
                        (type_ == kProof && state_ == State::kAwaitProof) ||
                        (type_ == kChallenge && state_ == State::kAwaitChallenge) ||
                        (type_ == kWelcome && state_ == State::kAwaitWelcome) ||
                        (type_ == kRefusal && (state_ == State::kAwaitChallenge || state_ == State::kAwaitWelcome));
  if (!expected || zero != 0) turn_away(Refusal::kGarbage, 0, "unexpected handshake message " + std::to_string(type_));
  if (length == 0 || length > kMaxHandshakeBytes) {
    turn_away(Refusal::kGarbage, 0, "invalid handshake message of " + std::to_string(length) + " bytes");
  }
  wanted_ = kHeaderBytes + length;
}

void Handshake::on_message() {
  const auto message = std::exchange(input_, {});
  const auto body = std::span(message).subspan(kHeaderBytes);
  try {
    switch (type_) {
      case kHello: hello_ = message; return on_hello(body);
      case kChallenge: challenge_ = message; return on_challenge(body);
      case kProof:
      case kWelcome: return on_proof(body);
      default: return on_refusal(body);
    }
  } catch (const Error& error) {
    if (state_ == State::kRefused) throw;
    turn_away(Refusal::kGarbage, 0, error.what());  // a field did not parse
  }
}

void Handshake::on_hello(std::span<const std::byte> body) {
  ByteReader reader(body, "a handshake hello");
  const auto kind = reader.integer<std::uint8_t>();
  const auto rail = reader.integer<std::uint8_t>();
  const auto attempt = reader.integer<std::uint32_t>();
  const std::string job = reader.string(kMaxJobBytes);
  PeerId target;
  std::memcpy(target.bytes.data(), reader.bytes(target.bytes.size()).data(), target.bytes.size());
  reader.bytes(sizeof(Nonce));
  peer_ = read_address(reader);
  reader.expect_end();
  if (job != identity_.job) {
    turn_away(Refusal::kJob, 0, "it belongs to job \"" + printable(job) + "\", not to \"" + identity_.job + "\"");
  }
  if (attempt != identity_.attempt) {
    turn_away(Refusal::kAttempt, identity_.attempt,
              joined("it belongs to restart attempt ", attempt, ", not to ", identity_.attempt));
  }
  if (target != identity_.self.id) {
    turn_away(Refusal::kPeer, 0, "it looks for process " + to_string(target) + ", which is not this one");
  }
  if (kind != static_cast<std::uint8_t>(identity_.kind)) {
    turn_away(Refusal::kTransport, 0, "it chose another transport for this connection");
  }
  if (rail > kMaxRails || (rail != 0 && identity_.kind != LinkKind::kTcp)) {
    turn_away(Refusal::kTransport, 0, "it requests the invalid rail " + std::to_string(rail));
  }
  identity_.rail = rail;
  std::vector<std::byte> reply;
  ByteWriter writer(reply);
  writer.bytes(random_nonce());
  write_address(writer, identity_.self);
  const std::size_t before = output_.size();
  send(kChallenge, reply);
  challenge_.assign(output_.begin() + static_cast<std::ptrdiff_t>(before), output_.end());
  await(State::kAwaitProof);
}

void Handshake::on_challenge(std::span<const std::byte> body) {
  ByteReader reader(body, "a handshake challenge");
  reader.bytes(sizeof(Nonce));
  peer_ = read_address(reader);
  reader.expect_end();
  if (peer_.id != target_) turn_away(Refusal::kPeer, 0, to_string(Refusal::kPeer));
  send(kProof, mac("atoll initiator"));
  await(State::kAwaitWelcome);
}

void Handshake::on_proof(std::span<const std::byte> body) {
  const bool initiator = state_ == State::kAwaitWelcome;
  Mac received{};
  const bool right_length = body.size() == received.size();
  if (right_length) std::memcpy(received.data(), body.data(), received.size());
  if (!right_length || !equal_in_constant_time(received, mac(initiator ? "atoll acceptor" : "atoll initiator"))) {
    turn_away(Refusal::kKey, 0, "it does not have this job's key (check ATOLL_KEY_FILE)");
  }
  await(initiator ? State::kDone : State::kProven);
}

void Handshake::on_refusal(std::span<const std::byte> body) {
  ByteReader reader(body, "a handshake refusal");
  const auto code = reader.integer<std::uint8_t>();
  const auto value = reader.integer<std::uint32_t>();
  reader.expect_end();
  const auto refusal =
      code <= static_cast<std::uint8_t>(Refusal::kGarbage) ? static_cast<Refusal>(code) : Refusal::kNone;
  std::string message = std::string("it refused: ") + to_string(refusal);
  if (refusal == Refusal::kAttempt) {
    message += joined(" (it is at attempt ", value, ", this rank at ", identity_.attempt, ")");
  }
  if (refusal == Refusal::kVersion) {
    message += joined(" (it speaks ", value, ", this rank ", kWireVersion, ")");
  }
  turn_away(refusal, value, message);
}

void Handshake::welcome() {
  send(kWelcome, mac("atoll acceptor"));
  await(State::kDone);
}

Mac Handshake::mac(const char* role) const {
  return hmac_sha256(identity_.key, {std::as_bytes(std::span(role, std::strlen(role) + 1)), hello_, challenge_});
}

}  // namespace atl::transport
