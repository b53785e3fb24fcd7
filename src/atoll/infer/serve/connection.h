// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "atoll/infer/serve/context.h"
#include "atoll/infer/serve/served_model.h"
#include "atoll/transport/stream/secure_stream.h"

namespace atl::infer {

/// One client of a server. On the server's loop.
class Connection : public transport::SecureStream::Owner, public ServedModel::Client {
 public:
  /// `on_over` is called once, last of all, when the connection may be destroyed.
  using OnOver = std::function<void(Connection&)>;
  Connection(ServerContext& context, Fd socket, const std::string& peer, OnOver on_over);
  ~Connection() override;

  void drain();
  void on_tick(Clock::time_point now);
  bool is_running() const;  ///< whether an inference runs or its answer is still being sent

 private:
  void on_open(transport::SecureStream& stream) override;
  void on_bytes(transport::SecureStream& stream, std::span<const std::byte> bytes) override;
  void on_drained(transport::SecureStream& stream) override;
  void on_closed(transport::SecureStream& stream, const std::optional<Error>& error) override;

  void send(const wire::Message& message) override;
  void forward(std::span<const std::byte> frame) override;
  void forward(const wire::FrameHeader& header, std::span<const std::byte> payload,
               std::shared_ptr<const void> owner) override;
  bool may_map_memory() const override { return local_port_ != 0 && hello_.port == local_port_; }
  std::size_t queued_bytes() const override;
  void pause() override;
  void resume() override;

  void send_frame(wire::FrameBytes frame);
  wire::FrameParser::Place place_for(const wire::FrameHeader& header);
  void take(const wire::ReceivedFrame& frame);
  void take(const wire::Message& message);
  void greet(const wire::Hello& hello);
  void open(const wire::Open& message);
  void take_probe(const wire::FrameHeader& header);
  ServedModel& model(std::uint64_t number);
  wire::Load load_of_others() const;
  void refuse(const Error& error);

  ServerContext& context_;
  const std::string peer_;
  const OnOver on_over_;
  const std::uint16_t local_port_;  // of the other end if it is on this host; otherwise 0
  const Clock::time_point started_ = Clock::now();
  wire::FrameParser parser_;
  std::map<std::uint64_t, std::unique_ptr<ServedModel>> models_;
  std::map<std::uint64_t, ServedModel*> inferences_;  // the last one of each model
  std::unique_ptr<transport::SecureStream> stream_;
  std::uint64_t probe_ = 0;
  std::size_t probe_first_bytes_ = 0;
  Clock::time_point probe_started_{};
  std::size_t queued_ = 0;             // at the last tick
  Clock::time_point read_ = started_;  // when the client was last seen to read
  int paused_ = 0;                     // number of models that have paused it
  std::uint64_t last_inference_ = 0;
  wire::Hello hello_;
  bool is_greeted_ = false;
  bool is_clogged_ = false;
  bool is_over_ = false;
};

}  // namespace atl::infer
