// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/session.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "atoll/infer/run/measure.h"
#include "atoll/infer/session/attempt.h"
#include "atoll/infer/session/divisions.h"
#include "atoll/infer/session/failure_pause.h"
#include "atoll/infer/session/in_flight.h"
#include "atoll/infer/session/session_checks.h"

namespace atl::infer {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr double kTellingShare = 0.2;  // of a model: what is quicker says little about how fast this robot is
constexpr double kHorizon = 0.05;      // how far ahead rates are asked for
constexpr std::chrono::milliseconds kMostWaitForServer{20};  // that has not ended the last inference

double seconds_since(Clock::time_point begin) { return Seconds(Clock::now() - begin).count(); }

std::uint64_t microseconds(double seconds) {
  constexpr auto kMost = static_cast<double>(wire::kMaxMicroseconds);
  return static_cast<std::uint64_t>(std::clamp(seconds * 1e6, 1.0, kMost));
}

}  // namespace

class Session::Impl final : private Client::Owner {
 public:
  Impl(SessionOptions options, Bundle model, std::shared_ptr<OperatorRunner> runner,
       std::shared_ptr<LocalEngine> engine)
      : options_(std::move(options)),
        model_(std::move(model.graph), model.weights, std::move(runner)),
        alone_(operators_of(model_.graph(), -1, -1)) {
    check_policy(options_.policy);
    check_lossy(graph(), options_.lossy);
    std::vector<std::vector<Region>> held(graph().tensors.size());
    for (const int input : graph().inputs) held[static_cast<std::size_t>(input)] = {rows_of(graph(), alone_, input)};
    local_program_ = rest_of(graph(), alone_, held);
    measure(std::move(engine));
    if (!options_.server || options_.policy == "local") return;
    ModelFiles files{model.hash, std::move(model.graph_text), std::move(model.weight_file)};
    Client::Owner& self = *this;
    client_ = std::make_unique<Client>(*options_.server, std::move(files), self);
    divisions_ = std::make_unique<Divisions>(graph(), profile_, division_options(options_), *client_, client_->rates(),
                                             [this] { client_->reconnect(); });
    client_->start();
  }

  ~Impl() override {
    const std::lock_guard turn(turn_);
    if (!client_) return;
    divisions_->stop();
    client_->stop();  // its calls of this object use it
  }

  const Graph& graph() const noexcept { return model_.graph(); }

  Outcome run(std::span<const HostBytes> inputs, std::optional<Seconds> deadline) {
    const Clock::time_point begin = Clock::now();
    const std::lock_guard turn(turn_);
    check_count(inputs.size());
    std::vector<Value> values;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Tensor& type = graph().tensors[static_cast<std::size_t>(graph().inputs[i])];
      values.push_back(model_.runner().from_host(type, inputs[i]));
    }
    return take_turn(values, deadline, begin, true);
  }

  Outcome run_values(std::span<const Value> inputs, std::optional<Seconds> deadline) {
    const Clock::time_point begin = Clock::now();
    const std::lock_guard turn(turn_);
    check_count(inputs.size());
    return take_turn(inputs, deadline, begin, false);
  }

  SessionReport report() const {
    SessionReport report;
    {
      const std::lock_guard lock(mutex_);
      statistics_.fill(report);
      report.plan = last_.plan;
      report.predicted = last_.predicted;
      report.bound = last_.bound;
      report.gap = last_.bound > 0 ? last_.predicted / last_.bound - 1 : 0;
      report.local_seconds = local_seconds();
    }
    const wire::Done done = flight_.last_done();
    report.server_compute = static_cast<double>(done.compute_us) * 1e-6;
    report.server_waited = static_cast<double>(done.waited_us) * 1e-6;
    report.policy = options_.policy;
    report.lossy = options_.lossy;
    if (engine_) report.engine = engine_->report();
    report.robot = model_.runner().device();
    if (!client_) {
      report.plans = {"local"};
      report.link.state = LinkState::kClosed;
      report.link.text = "no server";
      return report;
    }
    report.server = divisions_->server_device();
    if (const auto offer = divisions_->offer()) {
      for (const plan::OperatorPlan& each : offer->set->table.plans) report.plans.push_back(each.policy);
    }
    report.link = client_->status();
    const plan::LinkCost link = client_->rates().link();
    report.up_rate = link.up_bytes_per_second;
    report.down_rate = link.down_bytes_per_second;
    report.latency = link.latency;
    report.forecast = client_->rates().forecast_error();
    return report;
  }

  bool wait_until_ready(Deadline deadline) const { return divisions_ && divisions_->wait(deadline); }

 private:
  // What was decided for one inference.
  struct Choice {
    std::shared_ptr<const Divisions::Offer> offer;
    std::shared_ptr<SplitRun> run;  // null: local
    std::string plan = "local";
    double predicted = 0;
    double bound = 0;
    double rate = 0;
  };

  void measure(std::shared_ptr<LocalEngine> engine) {
    const SplitDim along =
        options_.profile ? SplitDim{options_.profile->input_tensor, options_.profile->dim} : usual_split(graph());
    const Operators operators = operators_of(graph(), along.input_tensor, along.dim);
    profile_ = options_.profile ? *options_.profile : measure_profile(model_, operators, options_.profile_time.count());
    if (!engine) return;
    const auto own = [this](std::span<const Value> inputs) { return own_answer(inputs); };
    engine_ = std::make_unique<EngineRuns>(std::move(engine), model_, own, profile_.seconds(), options_.engine);
  }

  void check_count(std::size_t inputs) const {
    if (inputs == graph().inputs.size()) return;
    throw Error(ErrorKind::kInvalidArgument, "the model has " + std::to_string(graph().inputs.size()) +
                                                 " inputs, and " + std::to_string(inputs) + " were given");
  }

  bool uses_engine() const { return engine_ && engine_->is_used(); }
  double predicted_local() const { return uses_engine() ? engine_->seconds() : profile_.seconds(); }
  double local_seconds() const { return predicted_local() * jitter_.ratio(); }

  Outcome take_turn(std::span<const Value> inputs, std::optional<Seconds> deadline, Clock::time_point begin,
                    bool wants_bytes) {
    if (!deadline) deadline = options_.deadline;
    const std::optional<double> limit = deadline ? std::optional(deadline->count()) : std::nullopt;
    const double local = local_seconds();
    AttemptRules rules;
    rules.hedge = options_.hedge;
    rules.margin = jitter_.margin(predicted_local());
    // A limit that is ours, or that even this robot cannot keep, begins with the turn: waiting for it would leave no time.
    rules.begin = limit && *limit >= local + rules.margin ? begin : Clock::now();
    rules.deadline = guard_deadline(options_.hedge, limit, local, rules.margin, options_.patience.count());
    const Choice choice = choose(local, rules);
    Outcome outcome;
    outcome.plan = choice.plan;
    outcome.predicted = choice.predicted;
    outcome.bound = choice.bound;
    InferenceRecord record;
    double waited = 0;
    if (!choice.run || !run_split(inputs, choice, rules, outcome, record, waited)) run_local(inputs, outcome);
    if (wants_bytes) {
      for (const Value& value : outcome.values) outcome.outputs.push_back(model_.runner().to_host(value));
    } else {
      model_.runner().wait();
    }
    outcome.seconds = seconds_since(begin);
    outcome.missed = limit && outcome.seconds > *limit;
    const double sent = choice.rate > 0 ? static_cast<double>(outcome.up_bytes + outcome.down_bytes) / choice.rate : 0;
    outcome.joules = joules_of(options_.power, outcome.seconds, outcome.seconds - waited, sent);
    remember(outcome, record);
    return outcome;
  }

  void remember(const Outcome& outcome, InferenceRecord record) {
    record.seconds = outcome.seconds;
    record.origin = outcome.origin;
    record.guard_used = outcome.guard_used;
    record.missed = outcome.missed;
    record.up_bytes = outcome.up_bytes;
    record.down_bytes = outcome.down_bytes;
    record.joules = outcome.joules;
    const std::lock_guard lock(mutex_);
    statistics_.add(record);
    last_.plan = outcome.plan;
    last_.predicted = outcome.predicted;
    last_.bound = outcome.bound;
  }

  Choice choose(double local, const AttemptRules& rules) {
    Choice choice;
    choice.predicted = local;
    if (!client_) return choice;
    client_->used();
    const auto offer = divisions_->offer();
    if (!offer || !client_->is_ready() || failures_.is_too_early() || !has_ended_last()) return choice;
    divisions_->look_at_link();
    choice.rate = client_->rates().up_rate();
    choice.bound = offer->set->bound_at(choice.rate);
    // With "always" the robot's own answer takes as long as the model; it is then all that can be late.
    const double ceiling = rules.hedge == Hedge::kAlways ? local : rules.deadline;
    const PlanChoice best =
        choose_plan(*offer->set, client_->rates().likely_up(kHorizon), local, ceiling, offer->usable());
    choice.predicted = best.seconds;
    choice.run = offer->runs.at(best.plan);
    if (choice.run) choice.plan = offer->set->table.plans[best.plan].policy;
    choice.offer = offer;
    return choice;
  }

  // A server runs one inference of a model at a time. One that has been given up may not be over there.
  bool has_ended_last() {
    const auto limit = std::chrono::duration_cast<Clock::duration>(Seconds(local_seconds() / 4));
    return flight_.wait_for_end(std::min<Clock::duration>(kMostWaitForServer, limit));
  }

  std::vector<Value> own_answer(std::span<const Value> inputs) {
    Inference inference(model_, alone_);
    set_inputs(inference, inputs);
    inference.run(local_program_, no_exchange());
    return outputs_from(inference);
  }

  void run_local(std::span<const Value> inputs, Outcome& outcome) {
    const double predicted = predicted_local();
    const bool by_engine = uses_engine();
    const Clock::time_point begin = Clock::now();
    std::optional<std::vector<Value>> made = by_engine ? engine_->run(inputs) : std::nullopt;
    const bool is_as_predicted = made.has_value() == by_engine;
    outcome.values = made ? std::move(*made) : own_answer(inputs);
    model_.runner().wait();
    outcome.origin = Origin::kLocal;
    if (!is_as_predicted) return;
    const std::lock_guard lock(mutex_);
    jitter_.add(predicted, seconds_since(begin));
  }

  // False: the link went before anything was sent.
  bool run_split(std::span<const Value> inputs, const Choice& choice, const AttemptRules& rules, Outcome& outcome,
                 InferenceRecord& record, double& waited) {
    SplitRun& run = *choice.run;
    const std::uint64_t number = begin_inference(choice, rules);
    if (number == 0) return false;
    Ending ending{*this, number};
    Inference inference(model_, run.operators());
    set_inputs(inference, inputs);
    Attempt attempt(model_, run, inference, rules);
    if (!attempt.follow()) {
      outcome.guard_used = attempt.was_stopped_by_guard();
      record.link_lost = attempt.link_error().has_value();
      if (uses_engine() && engine_->seconds() < attempt.rest_seconds()) {
        run_local(inputs, outcome);
      } else {
        attempt.finish_alone();
      }
    } else {
      ending.is_cancelled = false;
    }
    if (outcome.values.empty()) {
      outcome.values = outputs_from(inference);
      outcome.origin = !attempt.used_server() ? Origin::kLocal
                       : attempt.used_robot() ? Origin::kMixed
                                              : Origin::kServer;
    }
    // An answer that does not unpack: nothing of this server's can be trusted any more.
    if (attempt.link_error() && attempt.link_error()->kind() == ErrorKind::kProtocol) client_->reconnect();
    if (attempt.alone_seconds() > 0 && attempt.rest_seconds() >= kTellingShare * predicted_local()) {
      const std::lock_guard lock(mutex_);
      jitter_.add(attempt.rest_seconds(), attempt.alone_seconds());
    }
    outcome.up_bytes = run.exchange().sent_bytes();
    record.loss = run.exchange().loss();
    outcome.down_bytes = flight_.down_bytes();
    waited = attempt.waited_seconds();
    return true;
  }

  std::uint64_t begin_inference(const Choice& choice, const AttemptRules& rules) {
    const std::uint64_t number =
        flight_.begin(choice.run, [&] { return divisions_->connection() == choice.offer->connection; });
    if (number == 0) return 0;
    wire::Run message;
    message.model = choice.offer->model;
    message.inference = number;
    message.division = choice.run->number();
    message.budget_us =
        rules.hedge == Hedge::kAlways ? microseconds(2 * local_seconds()) : microseconds(rules.deadline);
    client_->send(message);
    return number;
  }

  // Whatever way an inference ends, the server hears of it, and what comes later belongs to nobody.
  struct Ending {
    Impl& session;
    std::uint64_t number;
    bool is_cancelled = true;
    ~Ending() {
      session.flight_.over();
      if (is_cancelled) session.client_->send(wire::Cancel{number});
    }
  };

  void set_inputs(Inference& inference, std::span<const Value> inputs) const {
    for (std::size_t i = 0; i < inputs.size(); ++i) inference.set_input(graph().inputs[i], inputs[i]);
  }

  std::vector<Value> outputs_from(Inference& inference) const {
    std::vector<Value> values;
    for (const Argument& output : graph().outputs) {
      const auto* tensor = std::get_if<TensorId>(&output);
      if (tensor == nullptr) continue;
      const Value& constant = model_.constant(tensor->id);
      values.push_back(constant ? constant : inference.whole(tensor->id));
    }
    return values;
  }

  void on_ready(const wire::Ready& ready) override { divisions_->on_ready(ready); }

  void on_lost(const Error& error) override {
    divisions_->on_lost();
    flight_.lost(error);
  }

  void on_message(const wire::Message& message) override {
    if (const auto* divided = std::get_if<wire::Divided>(&message)) divisions_->on_divided(*divided);
    if (const auto* done = std::get_if<wire::Done>(&message)) {
      flight_.done(*done);
      failures_.over();
    }
    const auto* failed = std::get_if<wire::Failed>(&message);
    if (failed == nullptr) return;
    if (failed->inference != 0) {
      flight_.failed(failed->inference, Error(failed->kind, "the server: " + failed->text));
      if (failed->kind != ErrorKind::kMismatch) failures_.another();
      // Its worker is gone, or it has forgotten the division: all is told anew.
      if (failed->kind == ErrorKind::kUnavailable || failed->kind == ErrorKind::kMismatch) client_->reconnect();
    } else if (client_->is_ready()) {
      divisions_->on_refused(failed->text);
    } else {
      on_lost(Error(failed->kind, "the server: " + failed->text));
    }
  }

  std::optional<wire::Ack> on_tensor(const wire::FrameHeader& header, std::span<const std::byte> payload) override {
    return flight_.take(header, payload);
  }

  const SessionOptions options_;
  LoadedModel model_;
  const Operators alone_;  // undivided
  Program local_program_;
  Profile profile_;
  std::unique_ptr<EngineRuns> engine_;  // null: none

  std::mutex turn_;  // held while an inference runs
  mutable std::mutex mutex_;
  Jitter jitter_;
  Statistics statistics_;
  Outcome last_;  // without its values
  InFlight flight_;
  FailurePause failures_;

  std::unique_ptr<Client> client_;
  std::unique_ptr<Divisions> divisions_;
};

Session::Session(SessionOptions options, Bundle model, std::shared_ptr<OperatorRunner> runner,
                 std::shared_ptr<LocalEngine> engine)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(model), std::move(runner), std::move(engine))) {}

Session::~Session() = default;

Outcome Session::run(std::span<const HostBytes> inputs, std::optional<Seconds> deadline) {
  return impl_->run(inputs, deadline);
}

Outcome Session::run_values(std::span<const Value> inputs, std::optional<Seconds> deadline) {
  return impl_->run_values(inputs, deadline);
}

const Graph& Session::graph() const noexcept { return impl_->graph(); }
SessionReport Session::report() const { return impl_->report(); }
bool Session::wait_until_ready(Deadline deadline) const { return impl_->wait_until_ready(deadline); }

}  // namespace atl::infer
