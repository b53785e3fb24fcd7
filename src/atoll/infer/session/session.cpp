// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/session.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "atoll/core/fd.h"
#include "atoll/core/log.h"
#include "atoll/infer/session/attempt.h"
#include "atoll/infer/session/failure_pause.h"
#include "atoll/infer/session/in_flight.h"
#include "atoll/infer/session/local_answer.h"
#include "atoll/infer/session/planner.h"
#include "atoll/infer/session/server_wait.h"
#include "atoll/infer/session/session_checks.h"
#include "atoll/infer/session/turn_gate.h"

namespace atl::infer {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr double kTellingShare = 0.2;  // of a model's time: shorter runs tell little about this robot's speed
constexpr double kHorizon = 0.05;      // seconds ahead for which rates are predicted

}  // namespace

class Session::Impl final : private LinkOwner {
 public:
  Impl(SessionOptions options, Bundle model, std::shared_ptr<OperatorRunner> runner,
       std::shared_ptr<LocalEngine> engine)
      : options_(checked_options(std::move(options), model.graph)),
        model_(std::move(model.graph), model.weights, std::move(runner)),
        local_(model_, std::move(engine), options_.profile, options_.profile_time.count(), options_.engine,
               options_.check) {
    if (!options_.server || options_.policy == "local") return;
    ModelFiles files{model.hash, std::move(model.graph_text), std::move(model.weight_file)};
    client_ = std::make_unique<Client>(*options_.server, std::move(files), static_cast<LinkOwner&>(*this));
    planner_ = std::make_unique<Planner>(graph(), local_.profile(), planner_options(options_), *client_,
                                         client_->rates(), [this] { client_->reconnect(); });
    client_->start();
  }

  ~Impl() override { close(); }

  bool is_inherited() const noexcept { return fork_depth() != process_; }
  const Graph& graph() const noexcept { return model_.graph(); }
  void close() {
    const std::lock_guard closing(closing_);
    gate_.close();
    if (!client_) return;
    planner_->stop();
    client_->stop();  // its callbacks use this object
  }

  Outcome run(std::span<const HostBytes> inputs, std::optional<Seconds> deadline,
              std::optional<Clock::time_point> since) {
    Frame frame(*this, since);
    check_count(graph(), inputs.size());
    std::vector<Value> values;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Tensor& type = graph().tensors[static_cast<std::size_t>(graph().inputs[i])];
      values.push_back(model_.runner().from_host(type, inputs[i]));
    }
    return take_turn(values, deadline, frame, true);
  }

  Outcome run_values(std::span<const Value> inputs, std::optional<Seconds> deadline,
                     std::optional<Clock::time_point> since) {
    Frame frame(*this, since);
    check_count(graph(), inputs.size());
    return take_turn(inputs, deadline, frame, false);
  }

  SessionReport report() const {
    SessionReport report;
    {
      const std::lock_guard lock(mutex_);
      statistics_.fill(report);
      fill(report, last_);
    }
    report.local_seconds = local_.seconds();
    fill(report, flight_.last_done());
    report.policy = options_.policy;
    report.lossy = options_.lossy;
    report.engine = local_.engine_report();
    report.robot = model_.runner().device();
    if (!client_) {
      report.plans = {"local"};
      report.link.state = LinkState::kClosed;
      report.link.text = "no server";
      return report;
    }
    report.expected_wait = wait_.expected(seconds_of(Clock::now()));
    planner_->fill(report);
    fill(report, *client_);
    if (const auto why = refusal()) report.link.refusal = why->text;
    return report;
  }

  bool wait_until_ready(Deadline deadline) const {
    return client_ && wait_for_server(*client_, *planner_, gate_, deadline, CallerCheck(options_.check));
  }
  std::optional<Refusal> refusal() const { return client_ ? refusal_of(*client_, *planner_) : std::nullopt; }

 private:
  // One inference's turn and the start of its times: `asked` for the user, `begin` for the robot's work.
  struct Frame {
    Frame(Impl& session, std::optional<Clock::time_point> since)
        : called(Clock::now()),
          asked(since.value_or(called)),
          caller(session.options_.check),
          turn(session.gate_, session.options_.check),
          begin(turn.has_waited() ? Clock::now() : called) {}
    const Clock::time_point called;
    const Clock::time_point asked;
    CallerCheck caller;
    const TurnGate::Turn turn;
    const Clock::time_point begin;
    double waited = 0;  // since `begin`
    InferenceRecord record{};
  };

  // The decision for one inference.
  struct Choice {
    std::shared_ptr<const Planner::Offer> offer;
    std::shared_ptr<SplitRun> run;  // null: local
    std::string plan = "local";
    double predicted = 0;
    double bound = 0;
    std::size_t place = 0;  // of the plan, in the offer
  };

  Outcome take_turn(std::span<const Value> inputs, std::optional<Seconds> deadline, Frame& frame, bool wants_bytes) {
    deadline = checked_deadline(deadline ? deadline : options_.deadline);
    const AttemptRules rules = rules_for(deadline, frame);
    const Choice choice = choose(rules, frame);
    Outcome outcome;
    outcome.plan = choice.plan;
    outcome.predicted = choice.predicted;
    outcome.bound = choice.bound;
    if (choice.run && run_split(inputs, choice, rules, outcome, frame)) {
      outcome.division = {choice.offer->prepared, &choice.offer->prepared->table.plans[choice.place]};
      outcome.divided = {choice.offer->prepared, &choice.offer->prepared->profiled.lowered};
    } else {
      run_local(inputs, rules, outcome);
    }
    if (wants_bytes) {
      for (const Value& value : outcome.values) outcome.outputs.push_back(model_.runner().to_host(value));
    } else {
      model_.runner().wait();
    }
    const Clock::time_point end = Clock::now();
    outcome.seconds = Seconds(end - frame.asked).count();
    outcome.missed = deadline && outcome.seconds > deadline->count();
    outcome.times = robot_times(Seconds(end - frame.begin).count(), frame.waited, outcome.up_bytes, outcome.down_bytes,
                                client_ ? client_->rates().link() : plan::LinkCost{});
    outcome.joules = joules_of(options_.power, outcome.times);
    outcome.refusal = failures_.taken_reason();
    if (const auto now = refusal()) outcome.refusal = now->text;
    remember(outcome, with_outcome(frame.record, outcome));
    return outcome;
  }

  // Uses the rest of the deadline, which is short if the turn came late.
  AttemptRules rules_for(std::optional<Seconds> deadline, Frame& frame) const {
    std::optional<double> left;
    if (deadline) left = deadline->count() - Seconds(frame.begin - frame.asked).count();
    AttemptRules rules;
    rules.begin = frame.begin;
    rules.hedge = options_.hedge;
    rules.margin = local_.margin();
    rules.deadline = guard_deadline(options_.hedge, left, local_.seconds(), rules.margin, options_.patience.count());
    rules.engine_seconds = local_.engine_seconds();
    rules.gate = &gate_;
    rules.caller = &frame.caller;
    return rules;
  }

  void remember(const Outcome& outcome, const InferenceRecord& record) {
    const std::lock_guard lock(mutex_);
    statistics_.add(record);
    last_.plan = outcome.plan;
    last_.predicted = outcome.predicted;
    last_.bound = outcome.bound;
  }

  Choice choose(const AttemptRules& rules, Frame& frame) {
    const double local = local_.seconds();
    Choice choice;
    choice.predicted = local;
    if (!client_) return choice;
    client_->used();
    if (!usable_offer()) {
      if (rules.hedge == Hedge::kNever) throw_if_final(refusal());
      return choice;
    }
    const Clock::time_point begin = Clock::now();
    const bool is_free = flight_.wait_for_end(rules, local);
    frame.waited += seconds_since(begin);
    const auto offer = usable_offer();  // may have changed during the wait
    if (!is_free || !offer) return choice;
    planner_->look_at_link();
    choice.bound = offer->prepared->bound_at(client_->rates().up_rate());
    // With "always" the robot's own answer takes as long as the model, and nothing can be later.
    const double ceiling = rules.hedge == Hedge::kAlways ? local : rules.deadline;
    const PlanChoice best = choose_plan(*offer->prepared, client_->rates().likely_up(kHorizon), local, ceiling,
                                        offer->usable(), wait_.expected(seconds_of(Clock::now())));
    choice.predicted = best.seconds;
    choice.run = offer->runs.at(best.plan);
    choice.place = best.plan;
    if (choice.run) choice.plan = offer->prepared->table.plans[best.plan].policy;
    if (!choice.run && rules.hedge == Hedge::kNever) throw_if_final(refusal());
    choice.offer = offer;
    return choice;
  }

  // Null if the server cannot help.
  std::shared_ptr<const Planner::Offer> usable_offer() const {
    return client_->is_ready() && !failures_.is_too_early() ? planner_->offer() : nullptr;
  }

  void run_local(std::span<const Value> inputs, const AttemptRules& rules, Outcome& outcome) {
    auto values = local_.run(inputs, [&rules] { return !rules.is_over(); });
    if (!values || gate_.is_closed()) TurnGate::refuse();  // an engine does not check the gate
    outcome.values = std::move(*values);
    outcome.origin = Origin::kLocal;
  }

  // False: the link was lost before anything was sent.
  bool run_split(std::span<const Value> inputs, const Choice& choice, const AttemptRules& rules, Outcome& outcome,
                 Frame& frame) {
    SplitRun& run = *choice.run;
    const std::uint64_t number = begin_inference(choice, rules);
    if (number == 0) return false;
    Ending ending{*this, number};
    Inference inference(model_, run.operators());
    give_inputs(graph(), inference, inputs);
    Attempt attempt(model_, run, inference, rules);
    if (!attempt.follow()) {
      outcome.guard_used = attempt.was_stopped_by_guard();
      frame.record.link_lost = attempt.link_error().has_value();
      if (local_.engine_seconds() < attempt.rest_seconds()) {
        run_local(inputs, rules, outcome);
      } else {
        attempt.finish_alone();
      }
    } else {
      ending.is_cancelled = false;
    }
    if (outcome.values.empty()) {
      outcome.values = outputs_from(model_, attempt.result());
      outcome.origin = attempt.origin();
    }
    // The answer was malformed, so this connection can no longer be trusted.
    if (attempt.link_error() && attempt.link_error()->kind() == ErrorKind::kProtocol) client_->reconnect();
    if (attempt.alone_seconds() > 0 && attempt.rest_seconds() >= kTellingShare * local_.predicted()) {
      local_.took(attempt.rest_seconds(), attempt.alone_seconds());
    }
    outcome.up_bytes = run.exchange().sent_bytes() - ending.over();
    frame.record.loss = run.exchange().loss();
    outcome.down_bytes = flight_.down_bytes();
    frame.waited += attempt.waited_seconds();
    return true;
  }

  std::uint64_t begin_inference(const Choice& choice, const AttemptRules& rules) {
    const std::uint64_t number =
        flight_.begin(choice.run, [&] { return planner_->connection() == choice.offer->connection; });
    if (number == 0) return 0;
    wire::Run message;
    message.model = choice.offer->model;
    message.inference = number;
    message.division = choice.run->number();
    message.budget_us =
        rules.hedge == Hedge::kAlways ? microseconds(2 * local_.seconds()) : microseconds(rules.deadline);
    client_->send(message);
    return number;
  }

  // However an inference ends, the server is told, and rows that arrive later are dropped.
  struct Ending {
    Impl& session;
    std::uint64_t number;
    bool is_cancelled = true;
    bool is_over = false;
    ~Ending() { over(); }
    std::uint64_t over() {
      if (std::exchange(is_over, true)) return 0;
      session.flight_.over();
      return session.client_->over(number, is_cancelled);
    }
  };

  void on_refused(const std::string& text, bool /*is_final*/) override {
    if (!options_.logs_refusals || std::exchange(logged_, text) == text) return;
    log(LogLevel::kWarning, "infer: everything is computed here: " + text);
  }

  void on_lost(const Error& error) override {
    planner_->on_lost();
    flight_.lost(error);
  }

  void on_message(const wire::Message& message) override {
    const double now = seconds_of(Clock::now());
    if (const auto* ready = std::get_if<wire::Ready>(&message)) {
      wait_.forget();
      planner_->on_ready(*ready);
    }
    if (const auto* divided = std::get_if<wire::Divided>(&message)) planner_->on_divided(*divided);
    if (const auto* pong = std::get_if<wire::Pong>(&message)) wait_.told(now, pong->load);
    if (const auto* done = std::get_if<wire::Done>(&message)) {
      flight_.done(*done);
      failures_.over();
      wait_.told(now, done->load);
      wait_.waited(now, wire::seconds(done->waited_us));
    }
    if (const auto* failed = std::get_if<wire::Failed>(&message)) on_failed(*failed);
  }

  void on_failed(const wire::Failed& failed) {
    // A late answer is not the server's fault, unless its model is gone as well.
    const bool was_late = failed.kind == ErrorKind::kTimeout;
    if (failed.inference != 0) {
      if (failed.kind != ErrorKind::kMismatch && !was_late) failures_.another();
      flight_.failed(failed.inference, Error(failed.kind, "the server: " + failed.text));
      // The worker is gone, or it has forgotten the division: a new connection sets up everything again.
      if (failed.kind == ErrorKind::kUnavailable || failed.kind == ErrorKind::kMismatch) client_->reconnect();
    } else if (client_->is_ready()) {
      planner_->on_refused(failed.text);
    } else {
      if (was_late) failures_.another();
      failures_.keep(client_->status().refusal);
      on_lost(Error(failed.kind, "the server: " + failed.text));
    }
  }

  std::optional<wire::Ack> on_tensor(const wire::FrameHeader& header, std::span<const std::byte> payload) override {
    return flight_.take(header, payload);
  }

  const std::uint32_t process_ = fork_depth();
  const SessionOptions options_;
  LoadedModel model_;
  LocalAnswer local_;

  std::mutex closing_;
  TurnGate gate_;
  mutable std::mutex mutex_;
  Statistics statistics_;
  Outcome last_;  // without its values
  InFlight flight_;
  FailurePause failures_;
  ServerWait wait_;
  std::string logged_;  // the last refusal; used on the client's thread

  std::unique_ptr<Client> client_;
  std::unique_ptr<Planner> planner_;
};

Session::Session(SessionOptions options, Bundle model, std::shared_ptr<OperatorRunner> runner,
                 std::shared_ptr<LocalEngine> engine)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(model), std::move(runner), std::move(engine))) {}

Session::~Session() {
  // A forked child has neither the session's threads nor its connection, and its locks may be held forever.
  if (impl_->is_inherited()) static_cast<void>(impl_.release());
}

Session::Impl& Session::own() const {
  if (!impl_->is_inherited()) return *impl_;
  throw Error(ErrorKind::kUnavailable,
              "the session belongs to the parent of this forked process and cannot be used here: make another one");
}

Outcome Session::run(std::span<const HostBytes> inputs, std::optional<Seconds> deadline,
                     std::optional<Clock::time_point> since) {
  return own().run(inputs, deadline, since);
}

Outcome Session::run_values(std::span<const Value> inputs, std::optional<Seconds> deadline,
                            std::optional<Clock::time_point> since) {
  return own().run_values(inputs, deadline, since);
}

const Graph& Session::graph() const noexcept { return impl_->graph(); }
SessionReport Session::report() const { return own().report(); }
bool Session::wait_until_ready(Deadline deadline) const { return own().wait_until_ready(deadline); }
std::optional<Refusal> Session::refusal() const { return own().refusal(); }

void Session::close() {
  if (!impl_->is_inherited()) impl_->close();
}

bool Session::is_inherited() const noexcept { return impl_->is_inherited(); }

}  // namespace atl::infer
