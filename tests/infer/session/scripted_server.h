// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "atoll/core/loop.h"
#include "atoll/infer/graph_json.h"
#include "atoll/infer/link/arrivals.h"
#include "atoll/infer/link/link_exchange.h"
#include "atoll/infer/run/executor.h"
#include "atoll/infer/session/prepared_plans.h"
#include "atoll/transport/stream/secure_stream.h"
#include "atoll/transport/stream/stream_listener.h"
#include "tests/support/modelled_runner.h"

namespace atl::infer::test {

/// A server of one modelled graph at a time, on threads of the test, that misbehaves as scripted.
class ScriptedServer final : public transport::StreamListener::Owner,
                             public transport::SecureStream::Owner,
                             public FrameSender {
 public:
  /// The faults when a message of a given name arrives ("Hello", "Open", "Divide", "Run", "Tensor", "Weights").
  struct Script {
    std::string dies_at{};     ///< the connection ends without a message
    std::string silent_at{};   ///< from then on nothing is answered, not even pings
    std::string garbage_at{};  ///< bytes that do not parse
    std::string drains_at{};
    std::optional<ErrorKind> refuses_models{};
    bool refuses_divisions = false;
    bool refuses_runs = false;  ///< as if their divisions were not known
    bool is_stuck = false;      ///< inferences start and are never answered; pings are
    bool answers_twice = false;
    bool answers_short = false;  ///< with fewer bytes than the rows have
    bool is_late = false;        ///< inferences fail because their budget is exceeded
    bool is_overrun = false;     ///< inferences fail because they compute for too long, which ends the model
    std::uint64_t most_model_bytes = std::uint64_t{1} << 40;
    std::uint32_t rules = kRulesVersion;
    std::chrono::milliseconds ends_later{0};  ///< delay of Done after an inference's last rows
    wire::Load load{};                        ///< that it reports
    int times = 1 << 30;                      ///< how often it misbehaves
  };

  explicit ScriptedServer(std::shared_ptr<const transport::Credentials> credentials, double speed = 0,
                          std::uint16_t port = 0)
      : credentials_(std::move(credentials)),
        runner_(std::make_shared<ModelledRunner>(Machine::kServer, speed)),
        loop_("scripted") {
    loop_.run_and_wait(
        [&] { listener_ = std::make_unique<transport::StreamListener>(loop_, *this, "127.0.0.1", port); });
    worker_ = std::thread([this] { work(); });
  }
  ~ScriptedServer() override {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
      fail_arrivals();
      changed_.notify_all();
    }
    worker_.join();
    loop_.run_and_wait([&] {
      stream_.reset();
      listener_.reset();
    });
  }

  std::string address() const { return listener_->address(); }
  std::uint16_t port() const { return listener_->port(); }
  void set(Script script) {
    bool was_silent = false;
    {
      const std::lock_guard lock(mutex_);
      script_ = std::move(script);
      changed_.notify_all();
      was_silent = is_silent_.exchange(false);
    }
    if (was_silent) cut();  // messages of the silent time will never be answered
  }
  /// The number of messages of this name that have arrived.
  int count(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    const auto found = counts_.find(name);
    return found == counts_.end() ? 0 : found->second;
  }
  std::uint64_t weight_bytes() const { return weight_bytes_; }
  void cut() {
    loop_.run_and_wait([&] { drop(); });
  }

  void send(const wire::Message& message) override { queue(wire::make_frame(message)); }
  void send(const wire::FrameHeader& header, HostBytes payload) override {
    bool twice = false;
    {
      const std::lock_guard lock(mutex_);
      twice = script_.answers_twice && spend();
      if (script_.answers_short && spend()) {
        wire::FrameHeader lying = header;
        lying.message_bytes -= 1;
        queue(wire::make_frame(lying, payload.bytes.first(payload.bytes.size() - 1)));
        return;
      }
    }
    const wire::FrameBytes frame = wire::make_frame(header, payload.bytes);
    queue(frame);
    if (twice) queue(frame);
  }

 private:
  struct Prepared {
    Operators operators;
    Program program;
    std::unique_ptr<Arrivals> arrivals;
    std::unique_ptr<LinkExchange> exchange;
  };

  Script script() const {
    const std::lock_guard lock(mutex_);
    return script_;
  }
  // Called under the lock.
  bool spend() {
    if (script_.times <= 0) return false;
    --script_.times;
    return true;
  }

  void queue(const wire::FrameBytes& bytes) {
    loop_.post([this, bytes] {
      if (stream_ && !is_silent_) stream_->send_on_loop({*bytes, bytes});
    });
  }

  void on_connection(Fd socket, const std::string& peer) override {
    transport::SecureStream::Options options;
    options.name = peer;
    drop();
    parser_ = std::make_shared<wire::FrameParser>();
    is_silent_ = false;
    stream_ = std::make_unique<transport::SecureStream>(loop_, *this, std::move(socket),
                                                        transport::SecureStream::Role::kServer, credentials_, options);
  }
  void on_open(transport::SecureStream&) override {}
  void on_drained(transport::SecureStream&) override {}
  void on_closed(transport::SecureStream&, const std::optional<Error>&) override { drop(); }
  void on_bytes(transport::SecureStream& stream, std::span<const std::byte> bytes) override {
    const auto parser = parser_;
    parser->push(bytes, [&](const wire::ReceivedFrame& frame) {
      if (stream_.get() == &stream) take(frame.header, frame.payload);
    });
  }

  void drop() {
    stream_.reset();
    const std::lock_guard lock(mutex_);
    fail_arrivals();
    graph_.clear();
  }
  void fail_arrivals() {
    for (auto& [number, each] : prepared_) each->arrivals->fail(Error(ErrorKind::kPeerLost, "the robot is gone"));
  }

  // Returns whether the message is to be answered at all.
  bool follows_script(const std::string& name) {
    bool dies = false;
    bool garbage = false;
    bool drains = false;
    {
      const std::lock_guard lock(mutex_);
      ++counts_[name];
      changed_.notify_all();
      if (script_.silent_at == name && spend()) is_silent_ = true;
      dies = script_.dies_at == name && spend();
      garbage = script_.garbage_at == name && spend();
      drains = script_.drains_at == name && spend();
    }
    if (drains) send(wire::Draining{"the test ends it"});
    if (garbage) {
      const auto noise = std::make_shared<std::vector<std::byte>>(200, std::byte{0x5a});
      stream_->send_on_loop({*noise, noise});
    }
    if (dies) drop();
    return !dies && !garbage && !is_silent_;
  }

  void take(const wire::FrameHeader& header, std::span<const std::byte> payload) {
    if (header.kind == wire::FrameKind::kWeights) {
      if (!follows_script("Weights")) return;
      weight_bytes_ += payload.size();
      weights_there_ = header.offset + payload.size();
      if (weights_there_ == open_.weight_bytes) load();
    } else if (header.kind == wire::FrameKind::kProbe) {
      if (header.offset + payload.size() < header.message_bytes) return;
      wire::Ack ack;
      ack.bytes = header.message_bytes;
      ack.first_bytes = header.message_bytes / 4;
      ack.elapsed_us = 1000;
      send(ack);
    } else if (header.kind == wire::FrameKind::kTensor) {
      if (!follows_script("Tensor")) return;
      const std::lock_guard lock(mutex_);
      if (!current_) return;
      if (const auto ack = current_->arrivals->take(header, payload)) send(*ack);
    } else {
      take(wire::decode(payload));
    }
  }

  void take(const wire::Message& message) {
    if (!follows_script(wire::name_of(message))) return;
    if (std::holds_alternative<wire::Hello>(message)) {
      wire::Welcome welcome;
      welcome.software = "scripted";
      welcome.most_model_bytes = script().most_model_bytes;
      welcome.rules = script().rules;
      send(welcome);
    } else if (const auto* open = std::get_if<wire::Open>(&message)) {
      if (open->hash != open_.hash) weights_there_ = 0;
      open_ = *open;
      graph_.clear();
      if (const auto kind = script().refuses_models) {
        return send(wire::failed(open->model, 0, Error(*kind, "not this model")));
      }
      send(wire::Need{open->model, true, weights_there_});
    } else if (const auto* text = std::get_if<wire::GraphText>(&message)) {
      graph_ = text->text;
      if (weights_there_ == open_.weight_bytes) load();
    } else if (const auto* divide = std::get_if<wire::Divide>(&message)) {
      take(*divide);
    } else if (const auto* run = std::get_if<wire::Run>(&message)) {
      take(*run);
    } else if (const auto* ping = std::get_if<wire::Ping>(&message)) {
      send(wire::Pong{ping->token, script().load});
    } else if (const auto* cancel = std::get_if<wire::Cancel>(&message)) {
      const std::lock_guard lock(mutex_);
      cancelled_ = cancel->inference;
    }
  }

  void load() {
    if (graph_.empty()) return;
    const std::lock_guard lock(mutex_);
    prepared_.clear();
    current_ = nullptr;
    model_ = std::make_shared<LoadedModel>(graph_from_json(graph_), std::map<std::string, HostBytes>{}, runner_);
    const Profile profile = modelled_profile(model_->graph(), Machine::kServer);
    wire::Ready ready;
    ready.model = open_.model;
    ready.device = "scripted";
    ready.fixed = profile.fixed;
    ready.per_row = profile.per_row;
    ready.whole = profile.whole;
    ready.input_tensor = profile.input_tensor;
    ready.dim = profile.dim;
    send(ready);
  }

  void take(const wire::Divide& divide) {
    const std::lock_guard lock(mutex_);
    if (script_.refuses_divisions && spend()) {
      return send(wire::failed(divide.model, 0, Error(ErrorKind::kInvalidArgument, "no")));
    }
    auto made = std::make_shared<Prepared>();
    made->operators = operators_of(model_->graph(), divide.plan.input_tensor, divide.plan.dim);
    made->program = program_of(model_->graph(), made->operators, divide.plan, plan::Side::kServer);
    made->arrivals = std::make_unique<Arrivals>(model_->graph(), made->operators, made->program);
    made->exchange =
        std::make_unique<LinkExchange>(model_->graph(), made->operators, *this, *made->arrivals, [] { return 0.0; });
    prepared_[divide.division] = std::move(made);
    send(wire::Divided{divide.model, divide.division});
  }

  void take(const wire::Run& run) {
    const std::lock_guard lock(mutex_);
    if ((script_.refuses_runs || script_.is_late) && spend()) {
      current_ = nullptr;
      const ErrorKind kind = script_.is_late ? ErrorKind::kTimeout : ErrorKind::kMismatch;
      return send(wire::failed(run.model, run.inference, Error(kind, "not known")));
    }
    if (script_.is_overrun && spend()) {
      current_ = nullptr;
      const Error error(ErrorKind::kTimeout, "it has computed for longer than the limit");
      send(wire::failed(run.model, run.inference, error));
      return send(wire::failed(run.model, 0, error));
    }
    current_ = prepared_.at(run.division);
    current_->arrivals->begin(run.inference);
    current_->exchange->begin(run.inference);
    if (script_.is_stuck && spend()) return;
    queue_.push_back(run.inference);
    changed_.notify_all();
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return is_stopping_ || !queue_.empty(); });
      if (is_stopping_) return;
      const std::uint64_t inference = queue_.front();
      queue_.pop_front();
      const auto prepared = current_;
      const auto model = model_;
      lock.unlock();
      try {
        Inference running(*model, prepared->operators);
        running.run(prepared->program, *prepared->exchange, [&] { return cancelled_ < inference; });
        lock.lock();
        changed_.wait_for(lock, script_.ends_later, [&] { return is_stopping_ || script_.ends_later.count() == 0; });
        lock.unlock();
        send(wire::Done{inference, 1000, 0, 500, script().load});
      } catch (const Error&) {
        // The robot has disconnected.
      }
      lock.lock();
    }
  }

  std::shared_ptr<const transport::Credentials> credentials_;
  std::shared_ptr<ModelledRunner> runner_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Script script_;
  std::map<std::string, int> counts_;
  std::atomic<bool> is_silent_ = false;
  bool is_stopping_ = false;
  std::atomic<std::uint64_t> weight_bytes_ = 0;
  std::uint64_t weights_there_ = 0;
  wire::Open open_;
  std::string graph_;
  std::shared_ptr<LoadedModel> model_;
  std::map<std::uint32_t, std::shared_ptr<Prepared>> prepared_;
  std::shared_ptr<Prepared> current_;
  std::atomic<std::uint64_t> cancelled_ = 0;
  std::deque<std::uint64_t> queue_;
  std::shared_ptr<wire::FrameParser> parser_;
  std::unique_ptr<transport::SecureStream> stream_;
  std::unique_ptr<transport::StreamListener> listener_;
  std::thread worker_;
  Loop loop_;
};

}  // namespace atl::infer::test
