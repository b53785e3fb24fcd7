// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/worker/worker.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "atoll/infer/bundle/weight_file.h"
#include "atoll/infer/graph_json.h"
#include "atoll/infer/link/link_exchange.h"
#include "atoll/infer/link/worker_descriptors.h"
#include "atoll/infer/run/executor.h"
#include "atoll/infer/run/measure.h"
#include "atoll/infer/safety/admit.h"
#include "atoll/infer/worker/inbox.h"
#include "atoll/infer/worker/socket_sender.h"
#include "atoll/infer/worker/step_admission.h"

namespace atl::infer {
namespace {

constexpr std::size_t kMaxDivisions = 64;
constexpr std::uint64_t kMaxBands = 1'000'000;      // of operators, computed after chunks of inputs
constexpr std::chrono::milliseconds kShortWait{2};  // of waiting for rows, during which the turn is kept
constexpr double kUnknownRate = 1e7;                // bytes per second towards the robot, which is not measured here

// Returns whether the program computes before it receives rows, from constants alone.
bool begins_with_computing(const Program& program) {
  for (const Step& step : program.steps) {
    if (step.kind == Step::Kind::kReceive) return false;
    if (computes(step)) return true;
  }
  return false;
}

// Waits for the server's turn before computing, and gives the turn up while it waits for rows.
class InTurns : public Exchange {
 public:
  InTurns(Exchange& inner, Inbox& inbox, FrameSender& sender) : inner_(inner), inbox_(inbox), sender_(sender) {}
  ~InTurns() override { over(); }

  void send(int tensor, Region rows, HostBytes bytes) override { inner_.send(tensor, rows, std::move(bytes)); }

  std::optional<HostBytes> receive(int tensor, Region rows, Deadline until) override {
    const auto asked = Clock::now();
    auto bytes = inner_.receive(tensor, rows, has_turn_ ? Deadline::after(kShortWait).earlier(until) : until);
    if (!bytes && has_turn_) {
      over();
      bytes = inner_.receive(tensor, rows, until);
    }
    receiving_ += Clock::now() - asked;
    if (bytes && !has_turn_) wait_for_turn();
    return bytes;
  }

  void over() {
    if (std::exchange(has_turn_, false)) sender_.send(wire::Turn{wire::Turn::What::kOver});
  }

  void wait_for_turn() {
    const auto asked = Clock::now();
    sender_.send(wire::Turn{wire::Turn::What::kWanted});
    has_turn_ = inbox_.wait_for_turn();
    waited_ += Clock::now() - asked;
    if (!has_turn_) throw Error(ErrorKind::kPeerLost, "the server has closed the connection");
  }

  Clock::duration waited() const noexcept { return waited_; }        ///< for turns
  Clock::duration receiving() const noexcept { return receiving_; }  ///< for rows

 private:
  Exchange& inner_;
  Inbox& inbox_;
  FrameSender& sender_;
  bool has_turn_ = false;
  Clock::duration waited_{0};
  Clock::duration receiving_{0};
};

class Worker {
 public:
  Worker(Fd socket, Fd weights, std::shared_ptr<OperatorRunner> runner, const WorkerOptions& options)
      : socket_(std::move(socket)),
        weights_(std::move(weights)),
        runner_(std::move(runner)),
        options_(options),
        sender_(socket_.get(), options.payloads ? &options.payloads->out : nullptr),
        inbox_(socket_.get(), sender_, options.payloads ? &options.payloads->in : nullptr) {}
  ~Worker() { ::shutdown(socket_.get(), SHUT_RDWR); }

  void serve() {
    while (auto message = inbox_.next()) {
      try {
        if (!std::visit([this](const auto& each) { return take(each); }, *message)) return;
      } catch (const Error& error) {
        sender_.send(wire::failed(model_, 0, error));
      }
    }
  }

 private:
  // A plan's program for this side, and what arrives and leaves by it.
  struct Prepared {
    const Operators& operators;
    Program program;
    std::shared_ptr<Arrivals> arrivals;
    std::unique_ptr<LinkExchange> exchange;
  };

  // Each returns whether to continue.
  bool take(const wire::Open& open) {
    model_ = open.model;
    return true;
  }

  bool take(const wire::GraphText& text) {
    Graph graph = graph_from_json(text.text);
    safety::Limits limits;
    if (options_.most_activation_bytes > 0) limits.node_bytes = options_.most_activation_bytes;
    if (!options_.admits_everything) safety::admit(graph, limits);
    limits_ = limits;
    loaded_.emplace(std::move(graph), WeightFile(weights_.get()).tensors(), runner_);
    const SplitDim split = timed_along();
    const Operators& operators = operators_for(split.input_tensor, split.dim);
    wire::Ready ready;
    ready.model = model_;
    ready.device = runner_->device();
    ready.input_tensor = split.input_tensor;
    ready.dim = split.dim;
    if (options_.profile_seconds > 0) {
      Profile profile = measure_profile(*loaded_, operators, options_.profile_seconds);
      ready.fixed = std::move(profile.fixed);
      ready.per_row = std::move(profile.per_row);
      ready.whole = std::move(profile.whole);
    }
    sender_.send(ready);
    if (options_.on_ready) options_.on_ready();
    return true;
  }

  bool take(const wire::Divide& divide) {
    if (!loaded_) throw Error(ErrorKind::kProtocol, "a division arrived before its model");
    if (prepared_.size() >= kMaxDivisions && !prepared_.contains(divide.division)) {
      throw Error(ErrorKind::kRefused, "a model can have at most " + std::to_string(kMaxDivisions) + " divisions");
    }
    const Plan& plan = divide.plan;
    if (static_cast<std::uint64_t>(plan.chunks) * plan.shares.size() > kMaxBands) {
      throw Error(ErrorKind::kRefused, std::to_string(plan.chunks) + " chunks through " +
                                           std::to_string(plan.shares.size()) + " operators are too many");
    }
    const Graph& graph = loaded_->graph();
    const Operators& operators = operators_for(plan.input_tensor, plan.dim);
    Program program = program_of(graph, operators, plan, plan::Side::kServer);
    if (!options_.admits_everything) admit_program(graph, operators, program, limits_);
    const auto arrivals = std::make_shared<Arrivals>(graph, operators, program);
    auto exchange = std::make_unique<LinkExchange>(
        graph, operators, sender_, *arrivals, [] { return kUnknownRate; }, divide.answer_codec);
    inbox_.add_division(divide.division, arrivals);
    prepared_[divide.division] =
        std::make_unique<Prepared>(Prepared{operators, std::move(program), arrivals, std::move(exchange)});
    sender_.send(wire::Divided{model_, divide.division});
    return true;
  }

  bool take(const wire::Run& run) {
    try {
      sender_.send(compute(run));
    } catch (const Error& error) {
      sender_.send(wire::failed(model_, run.inference, error));
    }
    return true;
  }

  wire::Done compute(const wire::Run& run) {
    const auto start = Clock::now();
    const auto found = prepared_.find(run.division);
    // If Divide and Run arrived together, the division may be known here although the inbox did not know it at Run.
    if (found == prepared_.end() || found->second->arrivals->inference() != run.inference) {
      throw Error(ErrorKind::kMismatch, "division " + std::to_string(run.division) +
                                            " is not known here: send Divide, wait for Divided, then send Run");
    }
    const Prepared& prepared = *found->second;
    prepared.exchange->begin(run.inference);
    InTurns exchange(*prepared.exchange, inbox_, sender_);
    if (begins_with_computing(prepared.program)) exchange.wait_for_turn();
    const Deadline wanted =
        run.budget_us == 0 ? Deadline::never() : Deadline::after(std::chrono::microseconds(run.budget_us));
    const auto go_on = [&] { return !inbox_.is_cancelled(run.inference) && !wanted.expired(); };
    Inference inference(*loaded_, prepared.operators);
    if (!inference.run(prepared.program, exchange, go_on) && wanted.expired()) {
      throw Error(ErrorKind::kTimeout, "the inference exceeded its budget of " + std::to_string(run.budget_us) + " us");
    }
    exchange.over();
    const auto whole = Clock::now() - start;
    wire::Done done;
    done.inference = run.inference;
    done.waited_us = wire::microseconds(exchange.waited());
    done.received_us = wire::microseconds(exchange.receiving());
    done.compute_us =
        wire::microseconds(std::max(whole - exchange.waited() - exchange.receiving(), Clock::duration(0)));
    return done;
  }

  bool take(const wire::Bye&) { return false; }

  template <typename Other>
  bool take(const Other&) {
    throw Error(ErrorKind::kProtocol, "a worker does not accept such a message");
  }

  const Operators& operators_for(int input_tensor, int dim) {
    const auto key = std::pair(input_tensor, dim);
    const auto found = operators_.find(key);
    if (found != operators_.end()) return found->second;
    if (operators_.size() >= kMaxDivisions) throw Error(ErrorKind::kRefused, "too many dimensions to divide");
    return operators_.emplace(key, operators_of(loaded_->graph(), input_tensor, dim)).first->second;
  }

  // The dimension along which the model is timed. None if parts of its operators are not as harmless as the whole: then
  // it is timed, and so planned, by whole operators.
  SplitDim timed_along() {
    const SplitDim split = usual_split(loaded_->graph());
    if (options_.admits_everything) return split;
    const Operators& operators = operators_for(split.input_tensor, split.dim);
    try {
      admit_program(loaded_->graph(), operators, measured_parts(operators), limits_);
      return split;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kRefused) throw;
      return {};
    }
  }

  Fd socket_;
  Fd weights_;
  std::shared_ptr<OperatorRunner> runner_;
  const WorkerOptions& options_;
  SocketSender sender_;
  Inbox inbox_;
  std::uint64_t model_ = 0;
  safety::Limits limits_;
  std::optional<LoadedModel> loaded_;
  std::map<std::pair<int, int>, Operators> operators_;
  std::map<std::uint32_t, std::unique_ptr<Prepared>> prepared_;
};

}  // namespace

int run_worker(Fd socket, Fd weights, std::shared_ptr<OperatorRunner> runner, const WorkerOptions& options) {
  if (options.enter_sandbox) options.enter_sandbox();
  Worker worker(std::move(socket), std::move(weights), std::move(runner), options);
  worker.serve();
  return 0;
}

int run_worker(std::shared_ptr<OperatorRunner> runner, WorkerOptions options) {
  std::array<Fd, kWorkerDescriptors> given;
  int next = kFirstWorkerDescriptor;
  for (Fd& each : given) each = Fd(next++);
  options.payloads = std::make_shared<PayloadEnds>(PayloadEnds{PayloadReader(given[2]), PayloadWriter(given[3], 0)});
  given[2].reset();
  given[3].reset();
  return run_worker(std::move(given[0]), std::move(given[1]), std::move(runner), options);
}

}  // namespace atl::infer
