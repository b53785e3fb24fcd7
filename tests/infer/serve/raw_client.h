// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "atoll/core/loop.h"
#include "atoll/infer/link/memory_door.h"
#include "atoll/infer/wire/frame.h"
#include "atoll/infer/wire/messages.h"
#include "atoll/transport/address.h"
#include "atoll/transport/stream/host_port.h"
#include "atoll/transport/stream/secure_stream.h"

namespace atl::infer::test {

/// One end of the protocol that sends exactly what a test wants.
class RawClient : public transport::SecureStream::Owner {
 public:
  struct Received {
    wire::FrameHeader header;
    std::vector<std::byte> payload;
  };

  RawClient(const std::string& address, std::shared_ptr<const transport::Credentials> credentials)
      : loop_("raw-client") {
    const transport::HostPort place = transport::parse_host_port(address);
    Fd socket = transport::connect_tcp(place.host, place.port, std::chrono::seconds(10));
    port_ = transport::local_address(socket.get()).port();
    loop_.run_and_wait([&] {
      transport::SecureStream::Options options;
      options.name = address;
      stream_ = std::make_unique<transport::SecureStream>(
          loop_, *this, std::move(socket), transport::SecureStream::Role::kClient, std::move(credentials), options);
    });
  }
  ~RawClient() override {
    loop_.run_and_wait([&] {
      stream_.reset();
      fetch_.reset();
    });
  }

  void send(const wire::Message& message) { send_bytes(wire::make_frame(message)); }
  void send(const wire::FrameHeader& header, std::span<const std::byte> payload) {
    send_bytes(wire::make_frame(header, payload));
  }
  void send_bytes(wire::FrameBytes bytes) {
    loop_.post([this, bytes = std::move(bytes)] {
      if (stream_) stream_->send_on_loop({*bytes, bytes});
    });
  }

  /// The next frame; none once the server has closed. Throws after a minute.
  std::optional<Received> next() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::minutes(1), [&] { return !received_.empty() || is_closed_; })) {
      throw std::runtime_error("the server sent nothing");
    }
    if (received_.empty()) return std::nullopt;
    Received first = std::move(received_.front());
    received_.pop_front();
    return first;
  }

  /// Fetches the memory that `offer` promises; false if there is none.
  bool fetch(const wire::Offer& offer) {
    const auto fetched = std::make_shared<std::promise<std::shared_ptr<PayloadEnds>>>();
    std::future<std::shared_ptr<PayloadEnds>> answer = fetched->get_future();
    loop_.run_and_wait([&] {
      fetch_ = std::make_unique<MemoryFetch>(loop_, offer.door, offer.ticket,
                                             [fetched](const auto& ends) { fetched->set_value(ends); });
    });
    if (answer.wait_for(std::chrono::minutes(1)) != std::future_status::ready) return false;
    const std::shared_ptr<PayloadEnds> ends = answer.get();
    loop_.run_and_wait([&] { ends_ = ends; });
    return ends != nullptr;
  }
  /// Sends rows in the memory that was fetched.
  void lend(const wire::FrameHeader& header, std::span<const std::byte> payload) {
    const auto lent = ends_->out.put(payload);
    if (!lent) throw std::runtime_error("no room for a payload");
    send_bytes(wire::make_frame(header, *lent));
  }
  std::uint16_t port() const noexcept { return port_; }  ///< of this end of the connection
  int lent() {
    const std::lock_guard lock(mutex_);
    return lent_;  ///< frames whose payload came in memory
  }

  /// The next control message except acknowledgements, Queued and Offer.
  std::optional<wire::Message> next_message() {
    while (auto received = next()) {
      if (received->header.kind != wire::FrameKind::kControl) continue;
      wire::Message message = wire::decode(received->payload);
      if (std::holds_alternative<wire::Ack>(message) || std::holds_alternative<wire::Offer>(message)) continue;
      if (std::holds_alternative<wire::Queued>(message)) {
        ++queued_;
        continue;
      }
      return message;
    }
    return std::nullopt;
  }
  /// The same, which must be a `Kind`.
  template <typename Kind>
  Kind expect() {
    const auto message = next_message();
    if (!message) throw std::runtime_error("the server has closed the connection" + error());
    if (const auto* failed = std::get_if<wire::Failed>(&*message); failed && !std::is_same_v<Kind, wire::Failed>) {
      throw std::runtime_error("the server reported: " + failed->text);
    }
    if (!std::holds_alternative<Kind>(*message)) {
      throw std::runtime_error(std::string("the server sent ") + wire::name_of(*message));
    }
    return std::get<Kind>(*message);
  }
  bool is_closed() {
    while (next()) {
    }
    return true;
  }
  int queued() const noexcept { return queued_; }  ///< number of Queued messages

  /// Closes the connection without a message.
  void vanish() {
    loop_.run_and_wait([&] { stream_.reset(); });
  }

  /// The next Offer. Throws if the server has closed.
  wire::Offer expect_offer() {
    while (auto received = next()) {
      if (received->header.kind != wire::FrameKind::kControl) continue;
      const wire::Message message = wire::decode(received->payload);
      if (const auto* offer = std::get_if<wire::Offer>(&message)) return *offer;
    }
    throw std::runtime_error("the server has closed the connection" + error());
  }

 private:
  void on_open(transport::SecureStream&) override {}
  void on_drained(transport::SecureStream&) override {}
  void on_bytes(transport::SecureStream&, std::span<const std::byte> bytes) override {
    parser_.push(bytes, [this](const wire::ReceivedFrame& frame) {
      const std::lock_guard lock(mutex_);
      std::span<const std::byte> payload = frame.payload;
      wire::FrameHeader header = frame.header;
      if (header.kind == wire::FrameKind::kLent) {
        ++lent_;
        header.kind = wire::FrameKind::kTensor;
        payload = ends_->in.at(wire::lent_by(frame));
      }
      received_.push_back({header, {payload.begin(), payload.end()}});
      if (frame.header.kind == wire::FrameKind::kLent) ends_->in.release(wire::lent_by(frame));
      changed_.notify_all();
    });
  }
  void on_closed(transport::SecureStream&, const std::optional<Error>& error) override {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    if (error) error_ = error->what();
    changed_.notify_all();
  }
  std::string error() {
    const std::lock_guard lock(mutex_);
    return error_.empty() ? "" : ": " + error_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Received> received_;
  bool is_closed_ = false;
  std::string error_;
  int queued_ = 0;
  int lent_ = 0;
  std::uint16_t port_ = 0;
  std::unique_ptr<MemoryFetch> fetch_;
  std::shared_ptr<PayloadEnds> ends_;
  wire::FrameParser parser_;
  std::unique_ptr<transport::SecureStream> stream_;
  Loop loop_;
};

}  // namespace atl::infer::test
