// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/client/server_link.h"

#include <algorithm>
#include <utility>

#include "atoll/transport/address.h"

namespace atl::infer {
namespace {

using wire::FrameHeader;
using wire::FrameKind;

// Small, so that messages sent during an upload are not delayed much.
constexpr std::size_t kUploadQueueBytes = std::size_t{1} << 17;
constexpr std::size_t kUploadFrameBytes = std::size_t{1} << 16;
constexpr std::size_t kSocketBytes = std::size_t{1} << 17;
constexpr std::size_t kAheadBytes = std::size_t{1} << 16;  // of rows, which can no longer be withdrawn
constexpr std::size_t kMaxUnreadReplies = 10'000;  // a peer that leaves more unread does not behave like a server
constexpr std::chrono::milliseconds kMaxReopenDelay{60'000};
constexpr std::chrono::milliseconds kDrain{5000};
constexpr std::chrono::milliseconds kLinger{100};

// Returns whether a model refused with this kind will be refused again. A lack of memory, time or disk may be
// temporary.
bool is_lasting(ErrorKind kind) {
  return kind == ErrorKind::kRefused || kind == ErrorKind::kMismatch || kind == ErrorKind::kProtocol ||
         kind == ErrorKind::kInvalidArgument;
}

std::string megabytes(std::uint64_t bytes) { return std::to_string((bytes + 500'000) / 1'000'000); }

transport::SecureStream::Options stream_options(const ClientOptions& options) {
  transport::SecureStream::Options made;
  made.socket_send_bytes = kSocketBytes;
  made.name = options.server;
  made.host = transport::parse_host_port(options.server).host;
  return made;
}

}  // namespace

ServerLink::ServerLink(Loop& loop, LinkOwner& owner, Fd socket, const ClientOptions& options, const ModelFiles& files,
                       LinkRates& rates)
    : loop_(loop),
      owner_(owner),
      options_(options),
      files_(files),
      rates_(rates),
      heard_(Clock::now()),
      drained_(heard_),
      pinged_(heard_),
      local_port_(transport::has_one_host(socket.get()) ? transport::local_address(socket.get()).port() : 0) {
  transport::SecureStream::Owner& self = *this;
  stream_ =
      std::make_unique<transport::SecureStream>(loop_, self, std::move(socket), transport::SecureStream::Role::kClient,
                                                options.credentials, stream_options(options));
}

ServerLink::~ServerLink() = default;

std::chrono::milliseconds ServerLink::tick_period() const {
  return std::clamp(options_.silence / 10, std::chrono::milliseconds(5), std::chrono::milliseconds(100));
}

void ServerLink::queue(std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  if (bytes.empty() || !stream_) return;
  stream_->send_on_loop({bytes, std::move(owner)});
  queued_ = stream_->queued_bytes();
}

void ServerLink::queue(wire::FrameBytes frame) {
  const std::span<const std::byte> bytes(*frame);
  queue(bytes, std::move(frame));
}

void ServerLink::send(const wire::Message& message) {
  wire::FrameBytes frame = wire::make_frame(message);
  if (std::holds_alternative<wire::Divide>(message)) ++divides_;
  if (std::holds_alternative<wire::Run>(message)) ++runs_;
  queue(std::move(frame));
}

void ServerLink::send_rows(const FrameHeader& header, wire::FrameBytes frame) {
  if (header.offset == 0) rates_.sent({header.id, header.tensor, header.rows_begin}, header.message_bytes);
  queue(std::move(frame));
}

void ServerLink::send(const FrameHeader& header, HostBytes payload) {
  const auto head = std::make_shared<const wire::HeaderBytes>(wire::encode(header, payload.bytes));
  queue(*head, head);
  queue(payload.bytes, std::move(payload.owner));
}

bool ServerLink::wants_more() const { return stream_ && stream_->queued_bytes() < kAheadBytes; }

// The server has to read the replies to its requests.
void ServerLink::reply(const wire::Message& message) {
  if (queued_ == 0) replies_ = 0;
  if (++replies_ > kMaxUnreadReplies) {
    throw Error(ErrorKind::kProtocol, "it sends requests but does not read the replies: " +
                                          std::to_string(kMaxUnreadReplies) + " are waiting");
  }
  send(message);
}

void ServerLink::close() {
  if (!stream_) return;
  if (is_open_) send(wire::Bye{});
  stream_->close_on_loop(kLinger);
}

void ServerLink::on_open(transport::SecureStream& /*stream*/) {
  is_open_ = true;
  heard_ = Clock::now();
  pinged_ = heard_;  // Hello is a ping that Welcome answers
  enter(LinkState::kOpening, "greeting " + options_.server);
  send(wire::Hello{wire::software(), options_.name, kRulesVersion, local_port_});
}

void ServerLink::on_bytes(transport::SecureStream& /*stream*/, std::span<const std::byte> bytes) {
  heard_ = Clock::now();
  try {
    parser_.push(bytes, [this](const wire::ReceivedFrame& frame) {
      if (!has_ended_) on_frame(frame);
    });
  } catch (const Error& error) {
    end(Error(error.kind(), "the server at " + options_.server + ": " + error.what()));
  } catch (const std::exception& error) {
    end(Error(ErrorKind::kInternal, "the connection to " + options_.server + ": " + error.what()));
  }
}

void ServerLink::on_drained(transport::SecureStream& /*stream*/) {
  drained_ = Clock::now();
  queued_ = 0;
  if (state_ == LinkState::kUploading) upload();
  owner_.on_drained();
}

void ServerLink::on_closed(transport::SecureStream& /*stream*/, const std::optional<Error>& error) {
  if (closing_reason_) {
    end(*closing_reason_);
  } else if (error) {
    end(*error);
  } else {
    end(Error(ErrorKind::kPeerLost, "the server at " + options_.server + " closed the connection"));
  }
}

void ServerLink::on_frame(const wire::ReceivedFrame& frame) {
  switch (frame.header.kind) {
    case FrameKind::kControl: on_control(wire::decode(frame.payload)); return;
    case FrameKind::kProbe: on_probe(frame.header, frame.payload); return;
    case FrameKind::kTensor: on_rows(frame.header, frame.payload); return;
    case FrameKind::kLent: on_lent(frame); return;
    case FrameKind::kWeights: break;
  }
  throw Error(ErrorKind::kProtocol, "it sent weights, which only a client sends");
}

void ServerLink::on_rows(const FrameHeader& header, std::span<const std::byte> payload) {
  if (const std::optional<wire::Ack> ack = owner_.on_tensor(header, payload)) {
    rates_.received(*ack);
    reply(*ack);
  }
}

void ServerLink::on_lent(const wire::ReceivedFrame& frame) {
  if (!ends_) throw Error(ErrorKind::kProtocol, "it lent memory that is not mapped here");
  const wire::LentPayload lent = wire::lent_by(frame);
  on_rows(frame.header, ends_->in.at(lent));
  ends_->in.release(lent);
}

// If the door is not here after all, nothing changes.
void ServerLink::on_offer(const wire::Offer& offer) {
  if (offer.model != model_ || local_port_ == 0) return;
  fetch_ = std::make_unique<MemoryFetch>(loop_, offer.door, offer.ticket, [this](std::shared_ptr<PayloadEnds> ends) {
    if (!ends) return;
    ends_ = std::move(ends);
    sends_lent_ = true;
    send(wire::Mapped{model_});
  });
}

void ServerLink::on_control(const wire::Message& message) {
  if (const auto* ack = std::get_if<wire::Ack>(&message)) {
    rates_.acknowledged(*ack);
  } else if (const auto* ping = std::get_if<wire::Ping>(&message)) {
    reply(wire::Pong{ping->token});
  } else if (const auto* pong = std::get_if<wire::Pong>(&message)) {
    if (!awaits_pong_ || pong->token != token_) return;
    awaits_pong_ = false;
    if (measures_trip_) rates_.round_trip(seconds_of(heard_) - seconds_of(pinged_));
    owner_.on_message(message);
  } else if (const auto* welcome = std::get_if<wire::Welcome>(&message)) {
    on_welcome(*welcome);
  } else if (const auto* need = std::get_if<wire::Need>(&message)) {
    on_need(*need);
  } else if (const auto* queued = std::get_if<wire::Queued>(&message)) {
    if (queued->model != model_) return;
    if (is_ready()) {
      owner_.on_message(message);
    } else if (state_ != LinkState::kUploading) {
      enter(LinkState::kWaiting, "waiting: " + std::to_string(queued->ahead) + " before you" +
                                     (queued->why.empty() ? "" : " (" + queued->why + ")"));
    }
  } else if (const auto* ready = std::get_if<wire::Ready>(&message)) {
    if (ready->model != model_ || state_ == LinkState::kRefused) return;
    was_ready_ = true;
    reopen_delay_ = std::chrono::milliseconds(1000);
    enter(LinkState::kReady, "ready");
    owner_.on_message(message);
    if (options_.probe_bytes > 0) probe();
  } else if (const auto* offer = std::get_if<wire::Offer>(&message)) {
    on_offer(*offer);
  } else if (const auto* failed = std::get_if<wire::Failed>(&message)) {
    on_failed(*failed);
  } else if (std::holds_alternative<wire::Divided>(message)) {
    divides_ = std::max(0, divides_ - 1);
    owner_.on_message(message);
  } else if (const auto* done = std::get_if<wire::Done>(&message)) {
    runs_ = std::max(0, runs_ - 1);
    rates_.ended(done->inference);
    owner_.on_message(message);
  } else if (const auto* draining = std::get_if<wire::Draining>(&message)) {
    closing_reason_ =
        Error(ErrorKind::kPeerLost, "the server at " + options_.server + " is shutting down: " + draining->text);
    drains_until_ = Clock::now() + kDrain;
    enter(LinkState::kDraining, closing_reason_->what());
  } else if (std::holds_alternative<wire::Bye>(message)) {
    end(closing_reason_ ? *closing_reason_
                        : Error(ErrorKind::kPeerLost, "the server at " + options_.server + " said goodbye"));
  } else {
    throw Error(ErrorKind::kProtocol, std::string("it sent ") + wire::name_of(message) + ", which only a client sends");
  }
}

void ServerLink::on_welcome(const wire::Welcome& welcome) {
  if (model_ != 0) throw Error(ErrorKind::kProtocol, "it sent Welcome twice");
  rates_.round_trip(seconds_of(heard_) - seconds_of(pinged_));
  if (welcome.rules != kRulesVersion) {
    return refuse_all("the server at " + options_.server + " (" + welcome.software + ") uses version " +
                      std::to_string(welcome.rules) + " of the division rules, this robot (" + wire::software() +
                      ") version " + std::to_string(kRulesVersion) + ": install the same release on both");
  }
  if (welcome.most_model_bytes > 0 && files_.weights.bytes.size() > welcome.most_model_bytes) {
    return refuse_all("the model has " + megabytes(files_.weights.bytes.size()) + " MB of weights, but the server at " +
                      options_.server + " accepts at most " + megabytes(welcome.most_model_bytes) +
                      " MB for one model");
  }
  open_model();
}

// This server cannot help, but another one may be at the address later.
void ServerLink::refuse_all(const std::string& why) {
  model_ = 1;  // marks the server as greeted, with no model open
  reconnect_at_ = Clock::now() + options_.ask_again;
  refuse(why, true);
}

void ServerLink::refuse(const std::string& why, bool is_final) {
  state_ = LinkState::kRefused;
  owner_.on_refused(why, is_final);
}

// Uses a new number, so that late messages about the previous one are not taken for this one.
void ServerLink::open_model() {
  reopen_at_.reset();
  if (model_ != 0) send(wire::Close{model_});
  ++model_;
  divides_ = 0;
  runs_ = 0;
  fetch_.reset();
  sends_lent_ = false;
  enter(LinkState::kOpening, "opening the model on " + options_.server);
  send(wire::Open{model_, files_.hash, files_.graph.size(), files_.weights.bytes.size()});
}

void ServerLink::on_need(const wire::Need& need) {
  if (need.model != model_) return;
  if (state_ == LinkState::kUploading || is_ready() || need.weights_from > files_.weights.bytes.size()) {
    throw Error(ErrorKind::kProtocol, "it requested weights from byte " + std::to_string(need.weights_from) + " of " +
                                          std::to_string(files_.weights.bytes.size()) + " in state " +
                                          infer::to_string(state_));
  }
  if (need.graph) send(wire::GraphText{model_, files_.graph});
  uploaded_ = need.weights_from;
  shown_percent_ = -1;
  state_ = LinkState::kUploading;
  upload();
}

void ServerLink::upload() {
  const std::uint64_t size = files_.weights.bytes.size();
  while (uploaded_ < size && stream_ && stream_->queued_bytes() < kUploadQueueBytes) {
    const std::size_t count = std::min<std::uint64_t>(kUploadFrameBytes, size - uploaded_);
    const auto payload = files_.weights.bytes.subspan(uploaded_, count);
    FrameHeader header;
    header.kind = FrameKind::kWeights;
    header.id = model_;
    header.offset = uploaded_;
    uploaded_ += count;
    send(header, {payload, files_.weights.owner});
  }
  if (uploaded_ == size) {
    enter(LinkState::kWaiting, "waiting: the server is loading the model");
    return;
  }
  const int percent = static_cast<int>(100 * uploaded_ / size);
  if (percent == shown_percent_) return;
  shown_percent_ = percent;
  enter(LinkState::kUploading, "uploading " + megabytes(uploaded_) + " of " + megabytes(size) + " MB");
}

void ServerLink::on_failed(const wire::Failed& failed) {
  if (failed.model == 0 && failed.inference == 0) {
    end(Error(failed.kind, "the server at " + options_.server + " refuses: " + failed.text));
    return;
  }
  if (failed.model != model_) return;
  if (failed.inference != 0) {
    runs_ = std::max(0, runs_ - 1);
    rates_.ended(failed.inference);
    owner_.on_message(failed);
    return;
  }
  // Failed does not name a division: it refers to the one that was requested, unless the model itself is gone.
  const bool is_of_division = failed.kind == ErrorKind::kInvalidArgument || failed.kind == ErrorKind::kRefused ||
                              failed.kind == ErrorKind::kMismatch;
  if (is_ready() && divides_ > 0 && is_of_division) {
    --divides_;
    owner_.on_message(failed);
    return;
  }
  const bool ready = is_ready();
  reopen_at_ = Clock::now() + reopen_delay_;
  reopen_delay_ = std::min(2 * reopen_delay_, kMaxReopenDelay);
  refuse("the server at " + options_.server + " does not run the model: " + failed.text, is_lasting(failed.kind));
  if (ready) owner_.on_message(failed);
}

void ServerLink::tick(bool is_used) {
  const Clock::time_point now = Clock::now();
  if (!is_open_ || has_ended_) return;  // the stream itself limits the handshake
  const std::size_t queued = stream_->queued_bytes();
  if (queued < queued_) drained_ = now;
  queued_ = queued;
  if (now - std::max(heard_, drained_) > options_.silence) {
    end(Error(ErrorKind::kPeerLost, "the server at " + options_.server + " has been silent for " +
                                        std::to_string(options_.silence.count()) + " ms"));
    return;
  }
  if (drains_until_ && (runs_ == 0 || now >= *drains_until_)) {
    drains_until_.reset();
    close();
    return;
  }
  if (reopen_at_ && now >= *reopen_at_) open_model();
  if (reconnect_at_ && now >= *reconnect_at_) {
    reconnect_at_.reset();
    closing_reason_ =
        Error(ErrorKind::kUnavailable, "the server at " + options_.server + " is reconnected, to try the model again");
    close();
    return;
  }
  const bool is_idle = queued == 0 && rates_.is_idle();
  if (!awaits_pong_ && now - pinged_ > options_.silence / 3) {
    pinged_ = now;
    awaits_pong_ = true;
    measures_trip_ = is_idle && runs_ == 0;
    send(wire::Ping{++token_});
  }
  const double probe_after = std::chrono::duration<double>(options_.probe_after).count();
  if (is_ready() && is_used && is_idle && runs_ == 0 && options_.probe_bytes > 0 && rates_.up_age() > probe_after) {
    probe();
  }
}

void ServerLink::enter(LinkState state, const std::string& text) {
  state_ = state;
  owner_.on_state(state, text);
}

void ServerLink::end(const Error& error) {
  if (std::exchange(has_ended_, true)) return;
  stream_.reset();
  rates_.lost();
  owner_.on_lost(error);
}

}  // namespace atl::infer
