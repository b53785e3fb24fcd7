// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/serve/connection.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "atoll/core/log.h"
#include "atoll/infer/safety/admit.h"
#include "atoll/transport/address.h"

namespace atl::infer {
namespace {

constexpr std::size_t kMaxStrangerBytes = 4096;  // of a control frame, before the client's Hello
constexpr std::size_t kMaxModels = 16;           // of one client
constexpr std::size_t kMaxReplyBytes = std::size_t{64}
                                       << 20;  // queued for a client; beyond this, its messages are not read
constexpr std::chrono::milliseconds kConnectionCloseTimeout{1000};
constexpr std::chrono::seconds kMaxUnread{30};  // while more than kMaxReplyBytes wait

// Weights that admission would refuse anyway need not be uploaded.
std::uint64_t most_model_bytes(const ServerOptions& options) {
  return std::min(options.most_model_bytes, static_cast<std::uint64_t>(safety::Limits().weight_bytes));
}

}  // namespace

Connection::Connection(ServerContext& context, Fd socket, const std::string& peer, OnOver on_over)
    : context_(context),
      peer_(peer),
      on_over_(std::move(on_over)),
      local_port_(transport::has_one_host(socket.get()) ? transport::remote_address(socket.get()).port() : 0),
      parser_(kMaxStrangerBytes) {
  parser_.assemble_in([this](const wire::FrameHeader& header) { return place_for(header); });
  transport::SecureStream::Options options;
  options.name = peer;
  stream_ = std::make_unique<transport::SecureStream>(context_.loop, *this, std::move(socket),
                                                      transport::SecureStream::Role::kServer,
                                                      context_.options.credentials, options);
}

Connection::~Connection() {
  models_.clear();
  stream_.reset();
}

void Connection::on_open(transport::SecureStream&) {}
void Connection::on_drained(transport::SecureStream&) {
  if (std::exchange(is_clogged_, false)) resume();
}

void Connection::on_closed(transport::SecureStream&, const std::optional<Error>& error) {
  if (error && error->kind() != ErrorKind::kPeerLost) ++context_.counts.refused;
  if (error) log(LogLevel::kInfo, "serve: " + peer_ + ": " + error->what());
  is_over_ = true;
  on_over_(*this);
}

void Connection::on_bytes(transport::SecureStream&, std::span<const std::byte> bytes) {
  if (is_over_) return;
  context_.counts.bytes_in += bytes.size();
  try {
    parser_.push(bytes, [this](const wire::ReceivedFrame& frame) {
      if (!is_over_) take(frame);
    });
  } catch (const Error& error) {
    refuse(error);
  } catch (const std::exception& error) {
    refuse(Error(ErrorKind::kInternal, error.what()));
  }
  if (is_over_ || is_clogged_ || stream_->queued_bytes() <= kMaxReplyBytes) return;
  is_clogged_ = true;  // it sends requests but does not read the replies
  pause();
}

// Ends the connection of a client that violates the protocol.
void Connection::refuse(const Error& error) {
  if (is_over_) return;
  ++context_.counts.refused;
  log(LogLevel::kWarning, "serve: " + peer_ + ": " + error.what());
  send(wire::failed(0, 0, error));
  is_over_ = true;
  stream_->close_on_loop(kConnectionCloseTimeout);
}

void Connection::take(const wire::ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header;
  if (header.kind == wire::FrameKind::kControl) return take(wire::decode(frame.payload));
  if (!is_greeted_) throw Error(ErrorKind::kProtocol, "the client did not send Hello first");
  if (header.kind == wire::FrameKind::kWeights) return model(header.id).take_weights(header.offset, frame.payload);
  if (header.kind == wire::FrameKind::kProbe) return take_probe(header);
  const auto found = inferences_.find(header.id);
  if (found != inferences_.end()) found->second->take_rows(frame);  // otherwise it was cancelled and forgotten
}

wire::FrameParser::Place Connection::place_for(const wire::FrameHeader& header) {
  if (header.kind != wire::FrameKind::kTensor) return {};
  const auto found = inferences_.find(header.id);
  return found == inferences_.end() ? wire::FrameParser::Place() : found->second->place_for(header);
}

void Connection::take(const wire::Message& message) {
  if (!is_greeted_ && !std::holds_alternative<wire::Hello>(message)) {
    throw Error(ErrorKind::kProtocol, "the client did not send Hello first");
  }
  if (const auto* hello = std::get_if<wire::Hello>(&message)) {
    greet(*hello);
  } else if (const auto* opened = std::get_if<wire::Open>(&message)) {
    open(*opened);
  } else if (const auto* text = std::get_if<wire::GraphText>(&message)) {
    model(text->model).take(*text);
  } else if (const auto* divide = std::get_if<wire::Divide>(&message)) {
    model(divide->model).take(*divide);
  } else if (const auto* run = std::get_if<wire::Run>(&message)) {
    ServedModel& asked = model(run->model);
    if (run->inference <= last_inference_) throw Error(ErrorKind::kProtocol, "numbers of inferences must ascend");
    last_inference_ = run->inference;
    std::erase_if(inferences_, [&](const auto& entry) { return entry.second == &asked; });
    inferences_[run->inference] = &asked;
    asked.take(*run);
  } else if (const auto* cancel = std::get_if<wire::Cancel>(&message)) {
    if (const auto found = inferences_.find(cancel->inference); found != inferences_.end())
      found->second->take(*cancel);
  } else if (const auto* mapped = std::get_if<wire::Mapped>(&message)) {
    model(mapped->model).take(*mapped);
  } else if (const auto* ping = std::get_if<wire::Ping>(&message)) {
    send(wire::Pong{ping->token, load_of_others()});
  } else if (const auto* closed = std::get_if<wire::Close>(&message)) {
    const auto found = models_.find(closed->model);
    if (found == models_.end()) return;
    std::erase_if(inferences_, [&](const auto& entry) { return entry.second == found->second.get(); });
    models_.erase(found);
  } else if (std::holds_alternative<wire::Bye>(message)) {
    is_over_ = true;
    stream_->close_on_loop(kConnectionCloseTimeout);
  } else if (!std::holds_alternative<wire::Pong>(message) && !std::holds_alternative<wire::Ack>(message)) {
    throw Error(ErrorKind::kProtocol, std::string("a client does not send ") + wire::name_of(message));
  }
}

void Connection::greet(const wire::Hello& hello) {
  if (std::exchange(is_greeted_, true)) throw Error(ErrorKind::kProtocol, "the client sent Hello twice");
  hello_ = hello;
  parser_.set_most_control_bytes(wire::kMaxControlBytes);
  const ServerOptions& options = context_.options;
  wire::Welcome welcome;
  welcome.software = wire::software();
  welcome.device = options.device;
  welcome.most_model_bytes = most_model_bytes(options);
  welcome.most_sessions = static_cast<std::uint32_t>(options.most_workers);
  welcome.models = static_cast<std::uint32_t>(context_.with_worker.size());
  send(welcome);
  if (context_.is_draining) drain();
}

void Connection::open(const wire::Open& message) {
  if (models_.contains(message.model)) throw Error(ErrorKind::kProtocol, "the client opened a model twice");
  const auto fail = [&](const Error& error) {
    models_.erase(message.model);
    send(wire::failed(message.model, 0, error));
  };
  if (models_.size() >= kMaxModels) {
    return fail(Error(ErrorKind::kRefused, "a client can have at most " + std::to_string(kMaxModels) + " models"));
  }
  if (context_.is_draining) return fail(Error(ErrorKind::kUnavailable, "the server is shutting down"));
  if (hello_.rules != kRulesVersion) {
    return fail(Error(ErrorKind::kMismatch, "the client (" + hello_.software + ") uses version " +
                                                std::to_string(hello_.rules) + " of the division rules, this server (" +
                                                wire::software() + ") version " + std::to_string(kRulesVersion) +
                                                ": install the same release on both"));
  }
  if (const std::uint64_t most = most_model_bytes(context_.options); message.weight_bytes > most) {
    return fail(Error(ErrorKind::kRefused, "the model has " + std::to_string(message.weight_bytes) +
                                               " bytes of weights; this server accepts at most " +
                                               std::to_string(most) + " for one model"));
  }
  const auto made = models_.emplace(message.model, std::make_unique<ServedModel>(context_, *this, message)).first;
  try {
    made->second->begin();
  } catch (const Error& error) {
    fail(error);
  }
}

// The load of the device from other clients' models.
wire::Load Connection::load_of_others() const {
  const auto is_own = [this](Turns::Key key) {
    return std::any_of(models_.begin(), models_.end(), [key](const auto& entry) { return entry.second.get() == key; });
  };
  return context_.turns.load_of_others(is_own, Clock::now());
}

// The time in which a probe's frames arrive tells the client the rate of the link.
void Connection::take_probe(const wire::FrameHeader& header) {
  if (header.offset == 0) {
    probe_ = header.id;
    probe_started_ = Clock::now();
    probe_first_bytes_ = header.payload_bytes;
  }
  if (header.id != probe_ || header.offset + header.payload_bytes != header.message_bytes) return;
  wire::Ack ack;
  ack.bytes = header.message_bytes;
  ack.first_bytes = probe_first_bytes_;
  ack.elapsed_us = wire::microseconds(Clock::now() - probe_started_);
  send(ack);
}

ServedModel& Connection::model(std::uint64_t number) {
  const auto found = models_.find(number);
  if (found == models_.end()) throw Error(ErrorKind::kProtocol, "model " + std::to_string(number) + " is not open");
  return *found->second;
}

void Connection::send(const wire::Message& message) { send_frame(wire::make_frame(message)); }

void Connection::forward(std::span<const std::byte> frame) {
  send_frame(std::make_shared<const std::vector<std::byte>>(frame.begin(), frame.end()));
}

void Connection::forward(const wire::FrameHeader& header, std::span<const std::byte> payload,
                         std::shared_ptr<const void> owner) {
  if (is_over_) return;
  const auto head = std::make_shared<const wire::HeaderBytes>(wire::encode(header, payload));
  context_.counts.bytes_out += head->size() + payload.size();
  stream_->send_on_loop({*head, head});
  stream_->send_on_loop({payload, std::move(owner)});
}

void Connection::send_frame(wire::FrameBytes frame) {
  if (is_over_) return;
  context_.counts.bytes_out += frame->size();
  const std::span<const std::byte> bytes(*frame);
  stream_->send_on_loop({bytes, std::move(frame)});
}

std::size_t Connection::queued_bytes() const { return stream_->queued_bytes(); }

void Connection::pause() {
  if (paused_++ == 0) stream_->pause_on_loop();
}

void Connection::resume() {
  if (--paused_ == 0 && !is_over_) stream_->resume_on_loop();
}

void Connection::drain() {
  if (is_greeted_) send(wire::Draining{"the server is shutting down"});
}

void Connection::on_tick(Clock::time_point now) {
  if (!is_greeted_ && now - started_ > context_.options.hello_limit) {
    return refuse(Error(ErrorKind::kTimeout, "the client did not send Hello in time"));
  }
  const std::size_t queued = stream_->queued_bytes();
  if (queued <= kMaxReplyBytes || queued < queued_) read_ = now;
  queued_ = queued;
  if (now - read_ > kMaxUnread) {
    return refuse(
        Error(ErrorKind::kTimeout, "the client has read nothing for " + std::to_string(kMaxUnread.count()) + " s"));
  }
  for (const auto& [number, model] : models_) model->on_tick(now);
}

bool Connection::is_running() const {
  const bool is_sending = !is_over_ && stream_->queued_bytes() > 0;
  return is_sending ||
         std::any_of(models_.begin(), models_.end(), [](const auto& entry) { return entry.second->inference() != 0; });
}

}  // namespace atl::infer
