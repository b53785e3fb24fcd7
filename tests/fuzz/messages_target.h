// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "atoll/collectives/point_to_point.h"
#include "atoll/core/bytes.h"

namespace atl::fuzz {

/// Two ends of a link through shared memory in this process: an honest rank 0, and rank 1, which sends what the bytes say.
class MessagePair {
 public:
  struct Quiet : transport::LinkObserver {
    void on_control(transport::Link&, std::span<const std::byte>) override {}
    void on_link_failed(transport::Link&, const Error&, bool closed_in_order) override {
      if (!closed_in_order) std::abort();
    }
  };

  static MessagePair& get() {
    static MessagePair pair;
    return pair;
  }

  std::vector<transport::PeerAddress> members() const { return {honest.address(), strange.address()}; }
  transport::Link& link() { return strange.link(honest.address()); }

  Quiet observer;
  transport::Endpoint honest{options("rank 0"), observer};
  transport::Endpoint strange{options("rank 1"), observer};
  std::uint64_t groups = 0;

 private:
  static transport::EndpointOptions options(const char* name) {
    transport::EndpointOptions options;
    options.job = "fuzz";
    options.name = name;
    options.key.resize(32);
    options.transport = transport::TransportChoice::kShm;
    options.shm_window_bytes = std::size_t{64} << 10;
    return options;
  }
};

/// One group of the two, of which rank 0 sends and receives, and rank 1 writes frames into the channel of messages.
class MessageGroup {
 public:
  explicit MessageGroup(bool check_data)
      : id_{++pair_.groups, static_cast<std::uint32_t>(collectives::Port::kMessages), transport::Bell::kPointToPoint},
        ports_(pair_.honest, id_.group, pair_.members(), 0),
        messages_(
            ports_, failure_, 0, check_data, std::chrono::nanoseconds(0), [this](const Error& error) { end(error); },
            [](int) {}),
        channel_(pair_.link().channel(id_)) {
    receive(1, kNobodys, 1);
    transport::FrameHeader first;
    first.kind = static_cast<std::uint8_t>(collectives::FrameKind::kConsumed);
    while (!channel_.try_send(first, {})) std::this_thread::yield();  // until both ends have the channel
  }

  ~MessageGroup() {
    receive(1, kNobodys, 1);  // takes what has come
    end(Error(ErrorKind::kAborted, "the input is over"));
    pair_.link().close_channel(id_);
  }

  void receive(int source, std::uint64_t tag, std::size_t bytes) {
    auto& memory = memory_.emplace_back(bytes);
    ++ends_.begun;
    messages_.receive(source, tag, collectives::DataType::kUInt8, memory, Deadline::never(),
                      [this](const std::exception_ptr&, int) { ++ends_.ended; });
  }

  void send(std::uint64_t tag, std::size_t bytes) {
    auto& memory = memory_.emplace_back(bytes);
    ++ends_.begun;
    messages_.send(1, tag, collectives::DataType::kUInt8, memory, Deadline::never(),
                   [this](const std::exception_ptr&) { ++ends_.ended; });
  }

  void say(transport::FrameHeader header, std::size_t payload_bytes) {
    const std::vector<std::byte> payload(std::min(payload_bytes, channel_.max_payload()), std::byte{1});
    header.payload_bytes = static_cast<std::uint32_t>(payload.size());
    channel_.try_send(header, payload);
  }

  /// Takes what rank 0 has sent; with `grants` it is let go on.
  void listen(bool grants) {
    while (const transport::Frame* frame = channel_.front()) {
      transport::FrameHeader grant = frame->header;
      grant.kind = static_cast<std::uint8_t>(collectives::FrameKind::kGrant);
      grant.tag = frame->header.sequence;
      const bool is_wanted =
          grants && frame->header.kind == static_cast<std::uint8_t>(collectives::FrameKind::kAnnounce);
      channel_.pop();
      if (is_wanted) say(grant, 0);
    }
  }

 private:
  static constexpr std::uint64_t kNobodys = 1000;

  void end(const Error& error) {
    if (error.kind() == ErrorKind::kInternal) std::abort();
    failure_.set(error);
    messages_.fail_pending();
  }

  /// Goes last, when no thread can call anything any more.
  struct Ends {
    ~Ends() {
      if (begun != ended) std::abort();
    }
    std::size_t begun = 0;
    std::atomic<std::size_t> ended{0};
  };

  MessagePair& pair_ = MessagePair::get();
  Ends ends_;
  const transport::ChannelId id_;
  collectives::Failure failure_;
  std::deque<std::vector<std::byte>> memory_;  // of its exact size, so that a byte too many is found
  collectives::PeerPorts ports_;
  collectives::PointToPoint messages_;
  transport::Channel& channel_;
};

/// What a rank does with frames of messages that a peer has made up, between sends and receives of its own. Every one of these
/// ends once.
inline void messages(std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() > 512) return;
  ByteReader reader(bytes, "an input");
  try {
    MessageGroup group((reader.integer<std::uint8_t>() & 1U) != 0);
    while (true) {
      const auto what = reader.integer<std::uint8_t>();
      const std::uint64_t tag = what >> 6;
      switch (what % 5) {
        case 0:
          group.receive((what & 32U) != 0 ? 1 : collectives::kAnySource, tag, reader.integer<std::uint16_t>());
          break;
        case 1: group.send(tag, reader.integer<std::uint16_t>()); break;
        case 2: group.listen((what & 32U) != 0); break;
        default: {
          transport::FrameHeader header;
          header.kind = static_cast<std::uint8_t>(reader.integer<std::uint8_t>() % 8);
          header.dtype = static_cast<std::uint8_t>(collectives::DataType::kUInt8);
          if ((what & 32U) != 0) header.dtype = reader.integer<std::uint8_t>();
          header.operation = static_cast<std::uint8_t>(collectives::Operation::kSend);
          header.tag = tag;
          header.sequence = reader.integer<std::uint8_t>();
          header.count = reader.integer<std::uint16_t>();
          header.offset = reader.integer<std::uint16_t>();
          const auto has = reader.integer<std::uint16_t>();
          group.say(header, what % 5 == 3 ? header.count : has);
        }
      }
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kProtocol) std::abort();  // the input's end
  }
}

}  // namespace atl::fuzz
