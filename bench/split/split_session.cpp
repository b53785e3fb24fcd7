// SPDX-License-Identifier: Apache-2.0
// A robot of bench/split_bytes.py: a real session over real TLS and TCP, whose device is modelled. Reads its task, a
// JSON object on one line of standard input:
//   {"profile" (a file), "input_bytes", "speed" (divides the operators' times),
//    "watts": {"compute_watts", "idle_watts", "radio_watts"},
//    "server", "key_file", "policy", "seed", "hedge", "deadline", "patience", "silence",
//    "link": {"up", "down", "latency", "half_duplex"}, "trace" (the rates that the link really has),
//    "count", "seconds" (in which inferences begin), "period" (from one beginning to the next; a late one waits for the
//    next multiple), "pause" (after each), "warm_up"}
// Answers {"ready": true, ...}, waits for {"begin": SECONDS} of the machine's monotonic clock, infers, compares every
// byte of every answer, and prints a JSON object for each inference and one for all. A wrong answer ends the program:
// {"error": TEXT}, status 1.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/core/error.h"
#include "atoll/plan/operators/json.h"
#include "bench/split/lines.h"
#include "bench/split/modelled_robot.h"

namespace {

using atl::Clock;
using atl::Deadline;
using atl::Error;
using atl::ErrorKind;
using atl::bench::ModelledRobot;
using atl::infer::Outcome;
using atl::infer::Session;
using atl::infer::SessionOptions;
using atl::infer::SessionReport;
using atl::json::Fields;
using atl::json::Json;
using atl::plan::Channel;
using atl::plan::Lane;
using Seconds = std::chrono::duration<double>;

// The most inferences while the session connects, from which it learns how long it takes alone.
constexpr int kAlone = 5;
constexpr std::chrono::seconds kReadyLimit{120};

struct Task {
  std::string profile;  // its text
  std::optional<std::int64_t> input_bytes;
  double speed = 1;
  SessionOptions options;
  atl::plan::LinkCost link;
  std::optional<atl::plan::Trace> trace;
  std::int64_t count = 0;  // 0: no limit
  double seconds = 0;      // likewise
  double period = 0;
  double pause = 0;
  std::int64_t warm_up = 0;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error(ErrorKind::kUnavailable, path + " cannot be read: give a published profile");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

atl::plan::RobotPower power_of(const Json& value) {
  Fields fields(value, "the watts");
  atl::plan::RobotPower power;
  power.compute_watts = fields.number("compute_watts");
  power.idle_watts = fields.number("idle_watts");
  power.radio_watts = fields.number("radio_watts");
  fields.done();
  return power;
}

SessionOptions options_of(Fields& fields) {
  SessionOptions options;
  options.policy = fields.text("policy");
  options.seed = fields.unsigned_integer("seed", 0);
  options.hedge = atl::infer::hedge_of(fields.text("hedge", "deadline"));
  if (fields.has("deadline")) options.deadline = Seconds(fields.number("deadline"));
  options.patience = Seconds(fields.number("patience", options.patience.count()));
  options.power = power_of(fields.at("watts"));
  atl::infer::ClientOptions client;
  client.server = fields.text("server");
  client.credentials = atl::transport::Credentials::of_key_file(fields.text("key_file"));
  client.name = options.policy;
  const double silence = fields.number("silence", Seconds(client.silence).count());
  client.silence = std::chrono::duration_cast<std::chrono::milliseconds>(Seconds(silence));
  options.server = client;
  return options;
}

Task read_task() {
  const Json root = atl::bench::next_line("the task");
  Fields fields(root, "the task");
  Task task;
  task.profile = read_file(fields.text("profile"));
  if (fields.has("input_bytes")) task.input_bytes = fields.integer("input_bytes");
  task.speed = fields.number("speed", 1);
  task.options = options_of(fields);
  task.link = atl::plan::read_link(fields.at("link"));
  if (fields.has("trace")) task.trace = atl::bench::trace_of(fields.at("trace"));
  task.count = fields.integer("count", 0);
  task.seconds = fields.number("seconds", 0);
  task.period = fields.number("period", 0);
  task.pause = fields.number("pause", 0);
  task.warm_up = fields.integer("warm_up", 0);
  fields.done();
  if (task.count <= 0 && task.seconds <= 0) atl::plan::refuse("the task has no end: give \"count\" or \"seconds\"");
  return task;
}

class Robot {
 public:
  explicit Robot(Task task)
      : task_(std::move(task)),
        model_(task_.profile, task_.input_bytes, task_.speed),
        runner_(std::make_shared<atl::infer::test::ModelledRunner>(atl::infer::test::Machine::kRobot)),
        session_(with_profile(task_.options, model_), model_.bundle(), runner_) {}

  // Until the session is connected, it computes alone.
  void get_ready() {
    const bool wants_server = task_.options.policy != "local";
    const auto is_ready = [&] { return session_.wait_until_ready(Deadline::after(std::chrono::nanoseconds(0))); };
    for (int i = 0; i < kAlone && !is_ready(); ++i) infer();
    if (wants_server && !session_.wait_until_ready(Deadline::after(kReadyLimit))) {
      throw Error(ErrorKind::kTimeout, "no server was ready: " + session_.report().json());
    }
    for (std::int64_t i = 0; i < task_.warm_up; ++i) infer();
  }

  Json facts() const {
    return {{"robot_seconds", model_.robot_seconds()},
            {"server_seconds", model_.server_seconds()},
            {"plans", session_.report().plans}};
  }

  std::vector<Json> run(Clock::time_point begin) {
    std::vector<Json> lines;
    std::this_thread::sleep_until(begin);
    double turn = 0;
    for (std::int64_t frame = 0; task_.count <= 0 || frame < task_.count; ++frame) {
      double at = since(begin);
      if (task_.period > 0) {
        turn = std::max(turn, std::ceil(at / task_.period - 1e-6));
        at = turn * task_.period;
        ++turn;
      }
      if (task_.seconds > 0 && at >= task_.seconds) break;
      std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(Seconds(at)));
      lines.push_back(measured(begin));
      if (task_.pause > 0) std::this_thread::sleep_for(Seconds(task_.pause));
    }
    return lines;
  }

  Json report() const { return Json::parse(session_.report().json()); }

 private:
  static SessionOptions with_profile(SessionOptions options, const ModelledRobot& model) {
    options.profile = model.profile();
    return options;
  }
  static double since(Clock::time_point begin) { return Seconds(Clock::now() - begin).count(); }

  Outcome infer() {
    const std::vector<atl::infer::HostBytes> inputs = model_.inputs(number_);
    Outcome outcome = session_.run(inputs);
    if (!model_.is_answer(number_, outcome.outputs)) {
      throw Error(ErrorKind::kInternal, "inference " + std::to_string(number_) + ", by the plan " + outcome.plan +
                                            ", has a different answer than the robot alone");
    }
    ++number_;
    return outcome;
  }

  // The link from `at` on, on which bytes of earlier inferences may still be in flight.
  Channel link_from(double at, bool is_empty) const {
    Channel link = task_.trace ? task_.trace->channel(at, task_.link.latency, task_.link.is_half_duplex)
                               : atl::plan::steady(task_.link);
    const double up = is_empty ? 0 : std::max(0.0, up_free_ - at);
    const double down = link.is_half_duplex ? up : 0;
    link.end = [end = link.end, up, down](Lane way, double begin, double bytes) {
      return end(way, std::max(begin, way == Lane::kUp ? up : down), bytes);
    };
    return link;
  }

  Json measured(Clock::time_point begin) {
    const double at = since(begin);
    const double busy = runner_->busy_seconds();
    const double bytes = runner_->bytes_seconds();
    const Outcome outcome = infer();
    const double computed = runner_->busy_seconds() - busy;
    const double on_bytes = runner_->bytes_seconds() - bytes;
    const SessionReport report = session_.report();
    const bool is_lost = report.link_losses > losses_;
    losses_ = report.link_losses;
    const Channel link = link_from(at, false);
    const double up = ModelledRobot::framed(static_cast<double>(outcome.up_bytes));
    const double down = ModelledRobot::framed(static_cast<double>(outcome.down_bytes));
    const double radio = std::min(outcome.seconds, link_from(at, true).end(Lane::kUp, 0, up + down));
    Json line{{"at", at},
              {"seconds", outcome.seconds},
              {"robot", computed},
              {"bytes_seconds", on_bytes},
              {"up", outcome.up_bytes},
              {"down", outcome.down_bytes},
              {"origin", to_string(outcome.origin)},
              {"plan", outcome.plan},
              {"predicted", outcome.predicted},
              {"joules", atl::plan::joules(task_.options.power, outcome.seconds, computed, radio)},
              {"guard", outcome.guard_used},
              {"missed", outcome.missed}};
    double ideal = model_.robot_seconds();
    double framed = ideal;
    if (outcome.division) {
      const auto timeline = model_.timeline(*outcome.division, link, task_.options.power, false);
      ideal = timeline.seconds;
      framed = model_.timeline(*outcome.division, link, task_.options.power, true).seconds;
      line["server"] = timeline.server_busy;
      line["server_reported"] = report.server_compute;
    }
    // An inference that was given up or lost did not follow its plan.
    if (!outcome.guard_used && !is_lost) {
      line["ideal"] = ideal;
      line["overhead"] = outcome.seconds - framed;
      line["with_framing"] = outcome.seconds - ideal;
    }
    if (outcome.up_bytes > 0) up_free_ = at + link.end(Lane::kUp, 0, up);
    return line;
  }

  const Task task_;
  const ModelledRobot model_;
  const std::shared_ptr<atl::infer::test::ModelledRunner> runner_;
  Session session_;
  std::uint64_t number_ = 0;
  std::uint64_t losses_ = 0;
  double up_free_ = 0;  // seconds from the beginning
};

void work() {
  Robot robot(read_task());
  robot.get_ready();
  Json ready = robot.facts();
  ready["ready"] = true;
  atl::bench::say(ready);
  const Json command = atl::bench::next_line("a command");
  if (command.empty()) return;
  Fields fields(command, "a command");
  const Clock::time_point begin = atl::bench::moment_of(fields.number("begin"));
  fields.done();
  for (const Json& line : robot.run(begin)) atl::bench::say(line);
  atl::bench::say({{"report", robot.report()}});
}

}  // namespace

int main() {
  try {
    work();
  } catch (const std::exception& error) {
    atl::bench::say({{"error", error.what()}});
    return 1;
  }
  return 0;
}
