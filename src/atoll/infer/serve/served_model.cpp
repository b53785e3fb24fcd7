// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/serve/served_model.h"

#include <algorithm>
#include <utility>

#include "atoll/core/log.h"
#include "atoll/transport/shared_memory.h"

namespace atl::infer {
namespace {

constexpr std::size_t kMaxQueuedForWorker = std::size_t{16} << 20;  // beyond this, its client has to wait
constexpr int kMaxDivides = 64;                                     // unanswered
constexpr std::size_t kMaxQueuedForClient = std::size_t{4} << 30;   // twice the largest answer
constexpr std::size_t kMaxQueuedForAll = kMaxQueuedForClient;
constexpr std::size_t kLittleForClient = std::size_t{64} << 20;  // allowed even then
constexpr std::chrono::milliseconds kBetweenPings{500};          // to a client whose messages are not read
constexpr std::chrono::milliseconds kMaxUntaken{5'000};          // the client's kernel gives up unread data after 10 s

std::optional<wire::LentPayload> lend(PayloadWriter& ring, std::span<const std::byte> payload) {
  if (!payload.empty() && ring.is_reserved(payload)) return ring.commit(payload);
  return ring.put(payload);
}

}  // namespace

ServedModel::ServedModel(ServerContext& context, Client& client, const wire::Open& open)
    : context_(context), client_(client), open_(open) {}

ServedModel::~ServedModel() {
  *is_alive_ = false;
  if (ticket_) context_.door->withdraw(*ticket_);
  resume_client();
  std::erase(context_.waiting, this);
  const bool had_worker = context_.with_worker.erase(this) > 0;
  context_.turns.forget(this, Clock::now());
  const bool had_something = had_worker || incoming_ || worker_;
  incoming_.reset();
  worker_.reset();
  if (had_something) context_.retry_waiting_later();
}

void ServedModel::expect(State state, const char* what) const {
  if (state_ != state) throw Error(ErrorKind::kProtocol, std::string(what) + " arrived out of order");
}

void ServedModel::forward(const wire::Message& message) {
  worker_->send(message);
  pause_client();
}

// Stops reading from the client while too much waits for its worker.
void ServedModel::pause_client() {
  if (worker_->queued_bytes() <= kMaxQueuedForWorker || std::exchange(is_paused_, true)) return;
  pinged_ = took_ = Clock::now();
  taken_bytes_ = worker_->taken_bytes();
  client_.pause();
}

void ServedModel::resume_client() {
  if (std::exchange(is_paused_, false)) client_.resume();
}

void ServedModel::take(const wire::Divide& divide) {
  if (state_ == State::kDead) return;
  expect(State::kReady, "a division");
  if (++divides_ > kMaxDivides) throw Error(ErrorKind::kProtocol, "too many divisions are waiting for an answer");
  if (divides_ == 1) preparing_ = Clock::now();
  forward(divide);
}

void ServedModel::take(const wire::Run& run) {
  if (state_ == State::kDead || context_.is_draining) {
    const char* why = context_.is_draining ? "the server is shutting down" : "the model's worker process has ended";
    return client_.send(wire::failed(open_.model, run.inference, Error(ErrorKind::kUnavailable, why)));
  }
  expect(State::kReady, "an inference");
  if (inference_ != 0) throw Error(ErrorKind::kProtocol, "a model runs one inference at a time");
  inference_ = run.inference;
  forward(run);
}

void ServedModel::take(const wire::Cancel& cancel) {
  if (inference_ == 0 || cancel.inference != inference_) return;  // already over
  ++context_.counts.cancelled;
  if (!cancelled_) cancelled_ = Clock::now();
  forward(cancel);
  if (context_.turns.before(this) == 0) return;
  context_.turns.over(this, Clock::now());  // it waits for its turn: wake it up to see that it was cancelled
  on_turn();
}

wire::FrameParser::Place ServedModel::place_for(const wire::FrameHeader& header) {
  if (header.id != inference_ || !worker_ || ticket_) return {};
  const auto& ring = worker_->payloads_in();
  const std::span<std::byte> bytes = ring->reserve(header.payload_bytes);
  return {bytes, bytes.empty() ? nullptr : ring};
}

void ServedModel::take_rows(const wire::ReceivedFrame& frame) {
  if (!worker_) return;
  const bool is_lent = frame.header.kind == wire::FrameKind::kLent;
  if (is_lent && !is_mapped_) throw Error(ErrorKind::kProtocol, "the client lent memory that it has not mapped");
  if (frame.header.id != inference_) {  // it is already over, or was refused
    if (!is_lent) return;
    wire::FrameHeader released = frame.header;  // the worker drops what belongs to no inference, and releases it
    released.id = 0;
    worker_->forward(*wire::make_frame(released, wire::lent_by(frame)));
    return pause_client();
  }
  const auto lent = is_lent || ticket_ ? std::nullopt : lend(*worker_->payloads_in(), frame.payload);
  if (lent) {
    worker_->forward(*wire::make_frame(frame.header, *lent));
  } else if (!frame.bytes.empty()) {
    worker_->forward(frame.bytes);
  } else {
    worker_->forward(*wire::make_frame(frame.header, frame.payload));
  }
  pause_client();
}

void ServedModel::take(const wire::Mapped&) { is_mapped_ = ticket_.has_value(); }

// From here on the memory of the worker's input has one writer, the client, if it takes the offer.
void ServedModel::offer_memory() {
  if (ticket_ || !client_.may_map_memory()) return;
  try {
    const PayloadWriter& sends = *worker_->payloads_in();
    ticket_ = context_.door->offer(
        {transport::duplicate(sends.memory()), sends.head(), transport::duplicate(worker_->payloads_out_memory())});
  } catch (const Error& error) {
    return log(LogLevel::kWarning, std::string("serve: no memory is shared with a client: ") + error.what());
  }
  client_.send(wire::Offer{open_.model, context_.door->name(), *ticket_});
}

void ServedModel::forward_rows(const wire::ReceivedFrame& frame) {
  if (frame.header.id != inference_)
    throw Error(ErrorKind::kProtocol, "the worker process sent rows of an inference that is not running");
  if (frame.header.kind == wire::FrameKind::kTensor || is_mapped_) return client_.forward(frame.bytes);
  const wire::LentPayload lent = wire::lent_by(frame);
  const std::shared_ptr<PayloadReader>& reader = worker_->payloads_out();
  const std::span<const std::byte> payload = reader->at(lent);
  if (*unsent_lent_ + payload.size() > kPayloadRingBytes)
    throw Error(ErrorKind::kProtocol, "the worker process lent memory that it has lent already");
  *unsent_lent_ += payload.size();
  const auto sent = [reader, lent, unsent = unsent_lent_](const void*) {
    *unsent -= lent.bytes;
    reader->release(lent);
  };
  wire::FrameHeader header = frame.header;
  header.kind = wire::FrameKind::kTensor;
  client_.forward(header, payload, std::shared_ptr<const void>(payload.data(), sent));
}

void ServedModel::on_frame(const wire::ReceivedFrame& frame) {
  if (state_ == State::kDead) return;
  if (frame.header.kind == wire::FrameKind::kTensor || frame.header.kind == wire::FrameKind::kLent) {
    forward_rows(frame);
  } else if (frame.header.kind == wire::FrameKind::kControl) {
    take_from_worker(wire::decode(frame.payload));
  } else {
    throw Error(ErrorKind::kProtocol, "the worker process sent a frame that is not a message");
  }
  const std::size_t queued = client_.queued_bytes();
  const bool is_too_much = context_.queued_for_clients > kMaxQueuedForAll && queued > kLittleForClient;
  if (is_too_much || queued > kMaxQueuedForClient) {
    throw Error(ErrorKind::kProtocol, "the worker process sends more than its client reads");
  }
}

void ServedModel::take_from_worker(const wire::Message& message) {
  if (const auto* turn = std::get_if<wire::Turn>(&message)) {
    if (turn->what == wire::Turn::What::kWanted) {
      if (cancelled_) return on_turn();  // wakes it up to see that it was cancelled
      context_.turns.want(this, Clock::now());
      if (const std::size_t before = context_.turns.before(this); before > 0) {
        tell_queued(before, "other inferences are computed first");
      }
    } else {
      context_.turns.over(this, Clock::now());
    }
    return;
  }
  if (const auto* ready = std::get_if<wire::Ready>(&message); ready && ready->model == open_.model) {
    expect(State::kStarting, "the worker process's Ready");
    state_ = State::kReady;
    if (!timed_) timed_ = context_.profiles.keep(open_.hash, *ready);
    wire::Ready timed = *timed_;
    timed.model = open_.model;
    client_.send(timed);
    return offer_memory();
  } else if (const auto* done = std::get_if<wire::Done>(&message); done && done->inference == inference_) {
    ++context_.counts.inferences;
    context_.counts.compute_seconds += wire::seconds(done->compute_us);
    context_.counts.waited_seconds += wire::seconds(done->waited_us);
    end_inference();
    wire::Done told = *done;
    told.load = context_.turns.load_of_others([this](Turns::Key key) { return key == this; }, Clock::now());
    return client_.send(told);
  } else if (const auto* failed = std::get_if<wire::Failed>(&message); failed && failed->model == open_.model) {
    if (failed->inference == 0) on_division();
    if (failed->inference != 0) {
      ++context_.counts.failed;
      end_inference();
    } else if (state_ == State::kStarting) {
      return die(Error(failed->kind, failed->text));
    }
  } else if (std::holds_alternative<wire::Divided>(message)) {
    on_division();
  } else if (!std::holds_alternative<wire::Ack>(message)) {
    throw Error(ErrorKind::kProtocol, "the worker process sent a message that only others send");
  }
  client_.send(message);
}

// A division was prepared or refused; the time of the next one begins.
void ServedModel::on_division() {
  if (divides_ > 0) --divides_;
  preparing_ = Clock::now();
}

void ServedModel::end_inference() {
  inference_ = 0;
  cancelled_.reset();
  preparing_ = Clock::now();
  context_.turns.over(this, Clock::now());
}

void ServedModel::on_turn() {
  if (worker_) worker_->send(wire::Turn{wire::Turn::What::kGiven});
}

void ServedModel::on_overrun() {
  lose_worker("an inference has computed for longer than this server's limit of ", context_.options.compute_limit);
}

void ServedModel::on_tick(Clock::time_point now) {
  watch_arrival(now);
  watch_worker(now);
  // While the server does not read from a client, these pings keep the client from taking it for lost.
  if (!is_paused_ || now - pinged_ < kBetweenPings) return;
  pinged_ = now;
  client_.send(wire::Ping{});
}

// The time of computing is limited by the turns. Apart from that, a worker reads at once what it is sent, and has
// little to do.
void ServedModel::watch_worker(Clock::time_point now) {
  const std::chrono::milliseconds limit = context_.options.compute_limit;
  if (state_ == State::kStarting) {
    if (now - started_ < context_.options.start_limit) return;
    return lose_worker("the model could not be loaded and timed within ", context_.options.start_limit);
  }
  if (state_ != State::kReady) return;
  if (is_paused_ && std::exchange(taken_bytes_, worker_->taken_bytes()) != worker_->taken_bytes()) took_ = now;
  if (is_paused_ && now - took_ > std::min(limit, kMaxUntaken)) {
    return lose_worker("the worker process for this model has read nothing for ", std::min(limit, kMaxUntaken));
  }
  if (cancelled_ && now - *cancelled_ > limit) {
    return lose_worker("the worker process for this model has not ended a cancelled inference within ", limit);
  }
  if (divides_ > 0 && inference_ == 0 && now - preparing_ > context_.options.start_limit) {
    lose_worker("the worker process for this model has not prepared a division within ", context_.options.start_limit);
  }
}

void ServedModel::lose_worker(const char* what, std::chrono::milliseconds limit) {
  ++context_.counts.workers_lost;
  die(Error(ErrorKind::kTimeout, what + std::to_string(limit.count()) + " ms"));
}

void ServedModel::on_lost(const Error& error) {
  if (state_ == State::kDead) return;
  ++context_.counts.workers_lost;
  die(error);
}

void ServedModel::die(const Error& error) {
  state_ = State::kDead;
  if (inference_ != 0) client_.send(wire::failed(open_.model, inference_, error));
  client_.send(wire::failed(open_.model, 0, error));
  resume_client();
  end_inference();
  incoming_.reset();
  std::erase(context_.waiting, this);
  context_.with_worker.erase(this);
  if (!worker_) return context_.retry_waiting_later();
  worker_->stop();
  // Posted, because this may be inside a call from the worker.
  context_.loop.post([worker = std::shared_ptr<WorkerProcess>(std::move(worker_)), &context = context_]() mutable {
    worker.reset();
    context.retry_waiting();
  });
}

}  // namespace atl::infer
