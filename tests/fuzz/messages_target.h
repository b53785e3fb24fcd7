// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "atoll/collectives/messages/point_to_point.h"
#include "atoll/core/bytes.h"
#include "tests/fuzz/channel_pair.h"
#include "tests/fuzz/device_double.h"

namespace atl::fuzz {

/// Rank 0's ports, of which the link to rank 1 supports devices.
class PortsWithDevices final : public collectives::PeerPorts {
 public:
  PortsWithDevices(PortDouble& port, std::uint64_t group)
      : PeerPorts(ChannelPair::get().honest, group, ChannelPair::get().members(), 0), port_(port) {}
  transport::DirectPort* direct(int) const noexcept override { return &port_; }

 private:
  PortDouble& port_;
};

/// One group of two ranks: rank 0 sends and receives, and rank 1 writes frames into the channel of messages.
class MessageGroup {
 public:
  explicit MessageGroup(bool check_data)
      : id_{++pair_.groups, static_cast<std::uint32_t>(collectives::Port::kMessages), transport::Bell::kPointToPoint},
        ports_(port_, id_.group),
        messages_(
            ports_, failure_, 0, check_data, std::chrono::nanoseconds(0), [this](const Error& error) { end(error); },
            [](int) {}, nullptr),
        channel_(pair_.link().channel(id_)) {
    receive(1, kUnusedTag, 1);
    transport::FrameHeader first;
    first.kind = static_cast<std::uint8_t>(collectives::FrameKind::kConsumed);
    ChannelPair::send_first(channel_, first);
  }

  ~MessageGroup() {
    receive(1, kUnusedTag, 1);  // takes what has arrived
    end(Error(ErrorKind::kAborted, "the input is over"));
    pending_.give_up(nullptr);  // as the end of the link does
    pair_.link().close_channel(id_);
  }

  void receive(int source, std::uint64_t tag, std::size_t bytes, bool on_device = false) {
    auto& memory = memory_.emplace_back(bytes);
    ++ends_.begun;
    auto landing = on_device ? std::make_shared<LandingDouble>(device_, memory) : nullptr;
    messages_.receive(
        source, tag, collectives::DataType::kUInt8, memory, Deadline::never(),
        [this](const std::exception_ptr&, int) { ++ends_.ended; }, std::move(landing));
  }

  void send(std::uint64_t tag, std::size_t bytes, bool on_device) {
    auto& memory = memory_.emplace_back(bytes);
    ++ends_.begun;
    const bool is_direct = on_device && messages_.direct_port(1, bytes) != nullptr;
    messages_.send(1, tag, collectives::DataType::kUInt8, memory, Deadline::never(),
                   [this](const std::exception_ptr&) { ++ends_.ended; }, {is_direct ? device_ : nullptr, nullptr});
  }

  /// Returns how many messages have gone from device to device.
  std::uint64_t direct() const { return messages_.direct_messages(); }

  /// Ends the oldest operation of the device or the network, if there is one.
  bool work(bool fails) {
    const Error lost(ErrorKind::kPeerLost, "the network ends it");
    return pending_.end_one(fails ? &lost : nullptr);
  }

  void send_frame(transport::FrameHeader header, std::size_t payload_bytes) {
    const std::vector<std::byte> payload(std::min(payload_bytes, channel_.max_payload()), std::byte{1});
    header.payload_bytes = static_cast<std::uint32_t>(payload.size());
    channel_.try_send(header, payload);
  }

  /// Takes what rank 0 has sent; with `grants`, grants what it has announced.
  void listen(bool grants) {
    while (const transport::Frame* frame = channel_.front()) {
      transport::FrameHeader grant = frame->header;
      grant.kind = static_cast<std::uint8_t>(collectives::FrameKind::kGrant);
      grant.tag = frame->header.sequence;
      const auto kind = static_cast<collectives::FrameKind>(frame->header.kind);
      const bool is_wanted =
          grants && (kind == collectives::FrameKind::kAnnounce || kind == collectives::FrameKind::kAnnounceDirect);
      channel_.pop();
      if (is_wanted) send_frame(grant, 0);
    }
  }

 private:
  static constexpr std::uint64_t kUnusedTag = 1000;

  void end(const Error& error) {
    if (error.kind() == ErrorKind::kInternal) std::abort();
    failure_.set(error);
    messages_.fail_pending();
  }

  /// Destroyed last, when no thread can call anything any more.
  struct Ends {
    ~Ends() {
      if (begun != ended) std::abort();
    }
    std::size_t begun = 0;
    std::atomic<std::size_t> ended{0};
  };

  ChannelPair& pair_ = ChannelPair::get();
  Ends ends_;
  PortDouble port_{pending_};  // before the members that may hold rings, which release it
  PendingOperations pending_;
  const std::shared_ptr<DeviceDouble> device_ = std::make_shared<DeviceDouble>(pending_);
  const transport::ChannelId id_;
  collectives::Failure failure_;
  std::deque<std::vector<std::byte>> memory_;  // of its exact size, so that a byte too many is found
  PortsWithDevices ports_;
  collectives::PointToPoint messages_;
  transport::Channel& channel_;
};

/// One kind more than there are, so that one is unknown.
inline constexpr unsigned kFrameKinds = static_cast<unsigned>(collectives::FrameKind::kTurnedDown) + 2;

inline transport::FrameHeader message_frame(ByteReader& reader, std::uint64_t tag, bool any_dtype) {
  transport::FrameHeader header;
  header.kind = static_cast<std::uint8_t>(reader.integer<std::uint8_t>() % kFrameKinds);
  header.dtype = static_cast<std::uint8_t>(collectives::DataType::kUInt8);
  if (any_dtype) header.dtype = reader.integer<std::uint8_t>();
  header.operation = static_cast<std::uint8_t>(collectives::Operation::kSend);
  header.tag = tag;
  header.sequence = reader.integer<std::uint8_t>();
  header.count = reader.integer<std::uint16_t>();
  header.offset = reader.integer<std::uint16_t>();
  return header;
}

/// Handles generated frames of messages from a peer, between sends and receives of this rank, of which some use a
/// device. Every one of these ends once.
inline void messages(std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() > 512) return;
  ByteReader reader(bytes, "an input");
  MessageGroup group((reader.integer<std::uint8_t>() & 1U) != 0);
  try {
    while (true) {
      const auto what = reader.integer<std::uint8_t>();
      const std::uint64_t tag = what >> 6;
      const bool choice = (what & 32U) != 0;
      const bool on_device = (what & 16U) != 0;
      switch (what % 8) {
        case 0:
          group.receive(choice ? 1 : collectives::kAnySource, tag, reader.integer<std::uint16_t>(), on_device);
          break;
        case 1: group.send(tag, reader.integer<std::uint16_t>(), on_device); break;
        case 2: group.listen(choice); break;
        case 3:
        case 4: group.work(choice); break;
        default: {
          const auto header = message_frame(reader, tag, choice);
          const auto has = reader.integer<std::uint16_t>();
          group.send_frame(header, what % 8 == 5 ? header.count : has);
        }
      }
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kProtocol) std::abort();  // the input's end
  }
}

}  // namespace atl::fuzz
