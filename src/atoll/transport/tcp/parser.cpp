// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/tcp/parser.h"

#include <algorithm>
#include <cstring>

#include "atoll/core/error.h"

namespace atl::transport::tcp {

namespace {

/// Checks a prefix as far as possible without state.
void check(const Prefix& prefix, std::size_t max_payload) {
  if (prefix.magic != Prefix::kMagic || prefix.zero != 0) bad_message("a message begins with wrong bytes");
  std::size_t least = 0;
  std::size_t most = 0;
  switch (prefix.type) {
    case Type::kData: most = max_payload; break;
    case Type::kCredit:
    case Type::kAck:
    case Type::kHeartbeat: least = most = sizeof(std::uint64_t); break;
    case Type::kSegment: least = 1, most = kMaxSegment; break;
    case Type::kProbe: most = kMaxProbe; break;
    case Type::kOpen: least = most = sizeof(OpenBody); break;
    case Type::kControl: most = kMaxControlBody; break;
    case Type::kClose:
    case Type::kBye: break;
    default: bad_message("message of unknown type ", static_cast<int>(prefix.type));
  }
  if (prefix.length < least || prefix.length > most) {
    bad_message("message of type ", static_cast<int>(prefix.type), " with ", prefix.length, " bytes (allowed: ", least,
                " to ", most, ")");
  }
}

}  // namespace

/// Appends to small_ until it holds `target` bytes; returns how many were taken.
std::size_t Parser::collect(std::span<const std::byte> bytes, std::size_t target) {
  const std::size_t count = std::min(bytes.size(), target - collected_);
  std::memcpy(small_.data() + collected_, bytes.data(), count);
  collected_ += count;
  return count;
}

void Parser::consume(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (frame_left_ != 0) {
      const std::size_t count = std::min(bytes.size(), frame_left_);
      if (frame_to_ != nullptr) {
        std::memcpy(frame_to_, bytes.data(), count);
        frame_to_ += count;
      }
      frame_left_ -= count;
      bytes = bytes.subspan(count);
      if (frame_left_ == 0) finish_frame();
      continue;
    }
    if (collected_ < sizeof(Prefix)) {
      bytes = bytes.subspan(collect(bytes, sizeof(Prefix)));
      if (collected_ < sizeof(Prefix)) return;
      on_prefix();
    } else {
      bytes = bytes.subspan(collect(bytes, sizeof(Prefix) + collected_body()));
    }
    if (frame_left_ == 0 && collected_ == sizeof(Prefix) + collected_body()) on_body();
  }
}

/// Returns how much of the body is collected in small_ before it is processed.
std::size_t Parser::collected_body() const noexcept {
  switch (prefix_.type) {
    case Type::kSegment: return sizeof(std::uint64_t);
    case Type::kProbe: return 0;
    default: return prefix_.length;
  }
}

void Parser::on_prefix() {
  prefix_ = read_as<Prefix>(small_);
  check(prefix_, max_payload_);
  if (prefix_.type == Type::kProbe) frame_left_ = prefix_.length;
  if (prefix_.type != Type::kData) return;
  frame_to_ = sink_.on_data(prefix_.channel, prefix_.length);
  frame_left_ = sizeof(FrameHeader) + prefix_.length;
}

void Parser::on_body() {
  const auto body = std::span<const std::byte>(small_).subspan(sizeof(Prefix), collected_body());
  collected_ = 0;
  switch (prefix_.type) {
    case Type::kCredit: return sink_.on_credit(prefix_.channel, read_as<std::uint64_t>(body));
    case Type::kOpen: return sink_.on_open(prefix_.channel, read_as<OpenBody>(body));
    case Type::kClose: return sink_.on_close(prefix_.channel);
    case Type::kControl: return sink_.on_control(body);
    case Type::kHeartbeat: return sink_.on_heartbeat(read_as<std::uint64_t>(body));
    case Type::kBye: return sink_.on_bye();
    case Type::kAck: return sink_.on_ack(read_as<std::uint64_t>(body));
    case Type::kProbe: return sink_.on_probe();  // an empty probe
    case Type::kSegment:
      frame_to_ = sink_.on_segment(prefix_.channel, read_as<std::uint64_t>(body), prefix_.length);
      frame_left_ = prefix_.length;
      return;
    case Type::kData: return;  // handled by finish_frame
  }
}

void Parser::finish_frame() {
  frame_to_ = nullptr;
  collected_ = 0;
  switch (prefix_.type) {
    case Type::kSegment: return sink_.on_segment_complete();
    case Type::kProbe: return sink_.on_probe();
    default: return sink_.on_data_complete(prefix_.channel);
  }
}

std::span<std::byte> Parser::direct() const noexcept {
  if (frame_to_ == nullptr) return {};
  return {frame_to_, frame_left_};
}

void Parser::advance_direct(std::size_t count) {
  frame_to_ += count;
  frame_left_ -= count;
  if (frame_left_ == 0) finish_frame();
}

}  // namespace atl::transport::tcp
