// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/report.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "atoll/json/parse.h"
#include "atoll/plan/operators/timeline.h"

namespace atl::infer {
namespace {

constexpr std::size_t kKept = 1000;
constexpr std::size_t kShown = 100;

double quantile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<std::size_t>(std::lround(share * static_cast<double>(sorted.size() - 1)))];
}

}  // namespace

const char* to_string(Origin origin) noexcept {
  switch (origin) {
    case Origin::kLocal: return "local";
    case Origin::kServer: return "server";
    case Origin::kMixed: return "mixed";
  }
  return "?";
}

RobotTimes robot_times(double seconds, double waited, std::uint64_t up_bytes, std::uint64_t down_bytes,
                       const plan::LinkCost& link) noexcept {
  const auto on_air = [seconds](std::uint64_t bytes, double rate) {
    return bytes == 0 ? 0 : std::min(seconds, static_cast<double>(bytes) / rate);
  };
  RobotTimes times;
  times.waiting = std::clamp(waited, 0.0, seconds);
  times.computing = seconds - times.waiting;
  times.sending = on_air(up_bytes, link.up_bytes_per_second);
  times.receiving = on_air(down_bytes, link.down_bytes_per_second);
  return times;
}

double joules_of(const plan::RobotPower& power, const RobotTimes& times) noexcept {
  return plan::joules(power, times.computing + times.waiting, times.computing, times.sending + times.receiving);
}

void Statistics::add(const InferenceRecord& record) {
  ++counts_.inferences;
  ++counts_.origins.at(static_cast<std::size_t>(record.origin));
  counts_.guarded += record.guard_used ? 1 : 0;
  counts_.missed += record.missed ? 1 : 0;
  counts_.link_losses += record.link_lost ? 1 : 0;
  counts_.up_bytes += record.up_bytes;
  counts_.down_bytes += record.down_bytes;
  counts_.joules += record.joules;
  counts_.times.computing += record.times.computing;
  counts_.times.waiting += record.times.waiting;
  counts_.times.sending += record.times.sending;
  counts_.times.receiving += record.times.receiving;
  if (record.loss) {
    ++counts_.losses;
    counts_.largest_loss.max = std::max(counts_.largest_loss.max, record.loss->max);
    counts_.largest_loss.mean = std::max(counts_.largest_loss.mean, record.loss->mean);
    counts_.mean_loss += (record.loss->mean - counts_.mean_loss) / static_cast<double>(counts_.losses);
  }
  latencies_.push_back(record.seconds);
  if (latencies_.size() > kKept) latencies_.pop_front();
}

void Statistics::fill(SessionReport& report) const {
  report.inferences = counts_.inferences;
  report.origins = counts_.origins;
  report.guarded = counts_.guarded;
  report.missed = counts_.missed;
  report.link_losses = counts_.link_losses;
  report.up_bytes = counts_.up_bytes;
  report.down_bytes = counts_.down_bytes;
  report.joules = counts_.joules;
  report.times = counts_.times;
  report.losses = counts_.losses;
  report.largest_loss = counts_.largest_loss;
  report.mean_loss = counts_.mean_loss;
  if (latencies_.empty()) return;
  report.mean_joules = counts_.joules / static_cast<double>(counts_.inferences);
  const std::size_t shown = std::min(kShown, latencies_.size());
  report.latencies.assign(latencies_.end() - static_cast<std::ptrdiff_t>(shown), latencies_.end());
  std::vector<double> sorted(latencies_.begin(), latencies_.end());
  std::sort(sorted.begin(), sorted.end());
  report.mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / static_cast<double>(sorted.size());
  report.p50 = quantile(sorted, 0.5);
  report.p95 = quantile(sorted, 0.95);
  report.p99 = quantile(sorted, 0.99);
  report.worst = sorted.back();
}

void fill(SessionReport& report, const wire::Done& done) {
  report.server_compute = wire::seconds(done.compute_us);
  report.server_waited = wire::seconds(done.waited_us);
}

void fill(SessionReport& report, const Client& client) {
  report.link = client.status();
  const plan::LinkCost link = client.rates().link();
  report.up_rate = link.up_bytes_per_second;
  report.down_rate = link.down_bytes_per_second;
  report.latency = link.latency;
  report.forecast = client.rates().forecast_error();
}

std::string SessionReport::json() const {
  json::Json out = {
      {"policy", policy},
      {"plan", plan},
      {"predicted", predicted},
      {"bound", bound},
      {"gap", gap},
      {"local_seconds", local_seconds},
      {"plans", plans},
      {"robot", robot},
      {"server", server},
      {"inferences", inferences},
      {"guarded", guarded},
      {"missed", missed},
      {"link_losses", link_losses},
      {"latencies", latencies},
      {"mean", mean},
      {"p50", p50},
      {"p95", p95},
      {"p99", p99},
      {"worst", worst},
      {"up_bytes", up_bytes},
      {"down_bytes", down_bytes},
      {"joules", joules},
      {"mean_joules", mean_joules},
      {"server_compute", server_compute},
      {"server_waited", server_waited},
      {"expected_wait", expected_wait},
      {"planning", planning},
      {"up_rate", up_rate},
      {"down_rate", down_rate},
      {"latency", latency},
  };
  for (const Origin origin : {Origin::kLocal, Origin::kServer, Origin::kMixed}) {
    out["origins"][to_string(origin)] = origins.at(static_cast<std::size_t>(origin));
  }
  out["link"] = {{"state", to_string(link.state)},
                 {"text", link.text},
                 {"refusal", link.refusal},
                 {"connections", link.connections},
                 {"probe_bytes", link.probe_bytes}};
  out["robot_seconds"] = {{"computing", times.computing},
                          {"waiting", times.waiting},
                          {"sending", times.sending},
                          {"receiving", times.receiving}};
  out["lossy"] = {{"codec", wire::to_string(lossy)},
                  {"measured", losses},
                  {"largest_error", largest_loss.max},
                  {"mean_error", mean_loss}};
  out["engine"] = {{"state", engine.state}, {"seconds", engine.seconds},   {"deviation", engine.deviation},
                   {"runs", engine.runs},   {"failures", engine.failures}, {"late", engine.late},
                   {"text", engine.text}};
  out["forecast"] = {{"median_error", forecast.median}, {"high_error", forecast.high}, {"messages", forecast.messages}};
  return out.dump(-1, ' ', false, json::Json::error_handler_t::replace);
}

}  // namespace atl::infer
