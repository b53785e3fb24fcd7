// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/ucx/agreement.h"

#include <algorithm>
#include <type_traits>

#include "atoll/core/bytes.h"
#include "atoll/transport/tcp/wire.h"

namespace atl::transport::ucx {

namespace {

constexpr std::size_t kMaxAddress = std::size_t{64} << 10;  // hosts with many network devices have long ones
constexpr std::size_t kMaxObjection = 400;

enum Type : std::uint8_t { kOffer = 1, kVote };

struct Prefix {
  std::uint32_t magic = kMagic;
  std::uint8_t type = 0;
  std::uint8_t yes = 0;
  std::uint16_t zero = 0;
  std::uint32_t body_bytes = 0;
  std::uint32_t more_zero = 0;
  static constexpr std::uint32_t kMagic = 0x55'4c'54'41;  // "ATLU"
};
static_assert(sizeof(Prefix) == 16 && std::is_trivially_copyable_v<Prefix>);

[[noreturn]] void reject(const std::string& what) { tcp::bad_message("while the two ends negotiated UCX: " + what); }

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> bytes_of_text(const std::string& text) {
  return std::as_bytes(std::span(text.data(), std::min(text.size(), kMaxObjection)));
}

}  // namespace

Agreement::Agreement(std::uint64_t secret, std::span<const std::byte> address, const std::string& obstacle)
    : offers_(!address.empty() && address.size() <= kMaxAddress), wanted_(sizeof(Prefix)) {
  const std::string why = obstacle.empty() ? "its address in UCX is too long" : obstacle;
  if (!offers_) object("this end", why);
  const auto head = bytes_of(secret);
  std::vector<std::byte> body(head.begin(), head.end());
  const auto rest = offers_ ? address : bytes_of_text(why);
  body.insert(body.end(), rest.begin(), rest.end());
  send(kOffer, offers_, body);
}

void Agreement::object(const char* who, const std::string& why) {
  if (objection_.empty()) objection_ = std::string(who) + ": " + why;
}

void Agreement::send(std::uint8_t type, bool yes, std::span<const std::byte> body) {
  const auto size = static_cast<std::uint32_t>(body.size());
  const Prefix prefix{.type = type, .yes = static_cast<std::uint8_t>(yes), .body_bytes = size};
  const auto head = bytes_of(prefix);
  output_.insert(output_.end(), head.begin(), head.end());
  output_.insert(output_.end(), body.begin(), body.end());
}

void Agreement::vote(const std::string& objection) {
  if (!objection.empty()) object("this end", objection);
  has_voted_ = true;
  send(kVote, objection.empty(), bytes_of_text(objection));
}

void Agreement::receive(std::span<const std::byte> bytes) {
  while (!bytes.empty() && wanted() != 0) {
    const auto part = bytes.first(std::min(bytes.size(), wanted()));
    input_.insert(input_.end(), part.begin(), part.end());
    bytes = bytes.subspan(part.size());
    if (wanted() != 0) return;
    const auto prefix = read_as<Prefix>(input_);
    if (input_.size() == sizeof prefix) {
      const std::uint8_t expected = heard_offer_ ? kVote : kOffer;
      const std::size_t most = expected == kOffer ? sizeof(std::uint64_t) + kMaxAddress : kMaxObjection;
      const std::size_t least = expected == kOffer ? sizeof(std::uint64_t) : 0;
      if (prefix.magic != Prefix::kMagic || prefix.type != expected || prefix.yes > 1 || prefix.zero != 0 ||
          prefix.more_zero != 0 || prefix.body_bytes < least || prefix.body_bytes > most) {
        reject("a message begins with wrong bytes");
      }
      wanted_ = sizeof prefix + prefix.body_bytes;
      if (wanted() != 0) continue;
    }
    const std::vector<std::byte> message = std::exchange(input_, {});
    const auto body = std::span(message).subspan(sizeof prefix);
    theirs_ = prefix.type == kOffer ? prefix.yes == 1 : theirs_;
    prefix.type == kOffer ? on_offer(body) : on_vote(prefix.yes == 1 ? std::span<const std::byte>{} : body);
    if (prefix.type == kVote && prefix.yes == 0 && body.empty()) object("the other end", "it gives no reason");
  }
}

void Agreement::on_offer(std::span<const std::byte> body) {
  heard_offer_ = true;
  peer_secret_ = read_as<std::uint64_t>(body);
  const auto rest = body.subspan(sizeof peer_secret_);
  if (theirs_ && rest.empty()) reject("an offer without an address");
  if (theirs_) {
    peer_address_.assign(rest.begin(), rest.end());
  } else {
    object("the other end", printable(text_of(rest.first(std::min(rest.size(), kMaxObjection)))));
  }
  wanted_ = is_probing() ? sizeof(Prefix) : 0;
}

void Agreement::on_vote(std::span<const std::byte> body) {
  heard_vote_ = true;
  if (!body.empty()) object("the other end", printable(text_of(body)));
  wanted_ = 0;
}

}  // namespace atl::transport::ucx
