// SPDX-License-Identifier: Apache-2.0
// Probes, which measure the link in both directions besides inferences.
#include <algorithm>
#include <utility>

#include "atoll/infer/client/server_link.h"

namespace atl::infer {
namespace {

using wire::FrameHeader;
using wire::FrameKind;

constexpr std::size_t kMaxProbeBytes = std::size_t{1} << 20;
constexpr std::size_t kMinProbeBytes = std::size_t{1} << 14;
constexpr std::size_t kProbeFrames = 4;
constexpr double kProbeSeconds = 0.02;

}  // namespace

void ServerLink::on_probe(const FrameHeader& header, std::span<const std::byte> payload) {
  if (!their_probe_ || their_probe_->id != header.id) {
    if (header.message_bytes > kMaxProbeBytes) {
      throw Error(ErrorKind::kProtocol, "a probe of " + std::to_string(header.message_bytes) + " bytes: at most " +
                                            std::to_string(kMaxProbeBytes));
    }
    their_probe_ = Probe{header.id, 0, payload.size(), heard_};
  }
  if (header.offset != their_probe_->there || payload.size() > header.message_bytes - their_probe_->there) {
    throw Error(ErrorKind::kProtocol, "a probe's frame at byte " + std::to_string(header.offset) + " follows " +
                                          std::to_string(their_probe_->there) + " bytes");
  }
  their_probe_->there += payload.size();
  if (their_probe_->there < header.message_bytes) return;
  wire::Ack ack;
  ack.bytes = their_probe_->there;
  ack.elapsed_us = wire::microseconds(Clock::now() - their_probe_->started);
  ack.first_bytes = their_probe_->first_bytes;
  their_probe_.reset();
  rates_.received(ack);
  reply(ack);
}

void ServerLink::probe() {
  const double affordable = rates_.up_rate() * kProbeSeconds;
  std::size_t size = std::clamp(options_.probe_bytes, kProbeFrames, kMaxProbeBytes);
  if (rates_.probe_bytes() > 0 && affordable < static_cast<double>(size)) {
    size = std::max(std::min(size, kMinProbeBytes), static_cast<std::size_t>(affordable));
  }
  static const std::vector<std::byte> zeros(kMaxProbeBytes / kProbeFrames + 1);
  rates_.sent({}, static_cast<double>(size));
  ++token_;
  awaits_pong_ = false;
  for (std::size_t begin = 0; begin < size;) {
    const std::size_t count = std::min(size / kProbeFrames, size - begin);
    FrameHeader header;
    header.kind = FrameKind::kProbe;
    header.id = token_;
    header.message_bytes = static_cast<std::uint32_t>(size);
    header.offset = begin;
    send(header, {{zeros.data(), count}, nullptr});
    begin += count;
  }
  rates_.probed(size);
}

}  // namespace atl::infer
