// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/simulate/json.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <vector>

#include "atoll/json/fields.h"
#include "atoll/plan/numbers.h"
#include "atoll/plan/text.h"

namespace atl::plan::simulated {

inline void to_json(json::Json& value, What what) { value = to_string(what); }
inline void to_json(json::Json& value, const Action& action) { value = to_text(action); }

// Written under the names of their members.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankUse, pipeline, computes, optimises, transfers, reduces, idle, communicates,
                                   sent_bytes, peak_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StageUse, pipeline, stage, rank, in_flight)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RailUse, name, where, direction, bytes, share)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Event, what, rank, peer, pipeline, stage, micro_batch, step, begin, end, bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PathPart, what, where, seconds, count)

namespace {

using json::Fields;
using json::Json;

constexpr int kMaxForwards = 10'000'000;  // of one pipeline, as in a plan

Json rank_json(const Plan& plan, std::size_t index, const RankUse& use) {
  const Rank& rank = plan.ranks[index];
  Json value = use;
  value.update(Json{{"name", rank.name}, {"island", rank.island}, {"host", rank.host}, {"class", rank.device_class}});
  if (rank.memory_bytes) {
    value["memory_bytes"] = *rank.memory_bytes;
    value["fits"] = use.peak_bytes <= *rank.memory_bytes;
  }
  return value;
}

Json answer_of(const Plan& plan, const Simulation& simulation) {
  Json answer{{"seconds", simulation.seconds},      {"step_seconds", simulation.step_seconds},
              {"bound", simulation.bound},          {"bubble", simulation.bubble},
              {"events", simulation.events.size()}, {"ranks", Json::array()},
              {"stages", simulation.stages},        {"path", simulation.path},
              {"rails", simulation.rails}};
  for (std::size_t i = 0; i < simulation.ranks.size(); ++i) {
    answer["ranks"].push_back(rank_json(plan, i, simulation.ranks[i]));
  }
  return answer;
}

// Names the tracks of a rank: its computing, then one for each of the sends and reductions that overlap.
constexpr int kTracks = 64;

class Trace {
 public:
  explicit Trace(const Plan& plan) : plan_(plan), ends_(plan.ranks.size()) {
    for (std::size_t i = 0; i < plan.ranks.size(); ++i) {
      const auto [place, is_new] = islands_.try_emplace(plan.ranks[i].island, static_cast<int>(islands_.size()));
      if (is_new) name("process_name", place->second, -1, "island " + plan.ranks[i].island);
      islands_of_.push_back(place->second);
      name("thread_name", place->second, track(static_cast<int>(i), 0),
           "rank " + std::to_string(i) + " (" + plan.ranks[i].name + ")");
    }
    for (const Reduction& reduction : plan.reductions) members_.push_back(ranks_of(reduction));
  }

  void add(const Event& event) {
    if (event.end <= event.begin) return;
    const std::string batch = event.micro_batch >= 0 ? " " + std::to_string(event.micro_batch) : "";
    if (event.what == What::kReduction) {
      const std::string text = "reduction of " + plan_.reductions[as_index(event.stage)].name + batch;
      for (const int rank : members_[as_index(event.stage)]) slice(event, rank, free_lane(event, rank), text);
    } else if (event.what == What::kTransfer) {
      slice(event, event.rank, free_lane(event, event.rank), "to " + std::to_string(event.peer) + batch);
    } else {
      const std::string stage = event.what == What::kOptimiser ? "" : " " + std::to_string(event.stage);
      slice(event, event.rank, 0, to_string(event.what) + stage + batch);
    }
  }

  std::string text() { return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + text_ + "\n]}\n"; }

 private:
  static std::int64_t track(int rank, int lane) { return static_cast<std::int64_t>(rank) * kTracks + lane; }

  std::vector<int> ranks_of(const Reduction& reduction) const {
    std::set<int> ranks;
    for (const Member& member : reduction.members) {
      const Pipeline& pipeline = plan_.pipelines[as_index(member.pipeline)];
      for (std::size_t place = 0; place < pipeline.actions.size(); ++place) {
        const auto& actions = pipeline.actions[place];
        const auto has = [&](const Action& action) { return action.stage == member.stage; };
        if (std::any_of(actions.begin(), actions.end(), has)) ranks.insert(pipeline.ranks[place]);
      }
    }
    return {ranks.begin(), ranks.end()};
  }

  // Slices of one track must not overlap. Events come in order of their begin.
  int free_lane(const Event& event, int rank) {
    std::vector<double>& ends = ends_[as_index(rank)];
    const auto free = std::find_if(ends.begin(), ends.end(), [&](double end) { return end <= event.begin; });
    const auto lane = std::min<std::ptrdiff_t>(free - ends.begin(), kTracks - 2);
    if (static_cast<std::size_t>(lane) == ends.size()) {
      ends.push_back(0);
      name("thread_name", islands_of_[as_index(rank)], track(rank, static_cast<int>(lane) + 1),
           "rank " + std::to_string(rank) + " sends, reduces");
    }
    ends[static_cast<std::size_t>(lane)] = event.end;
    return static_cast<int>(lane) + 1;
  }

  void line(const std::string& text) { text_.append(text_.empty() ? "" : ",\n").append(text); }

  void name(const char* what, int process, std::int64_t thread, const std::string& text) {
    line(std::string("{\"ph\":\"M\",\"name\":\"") + what + "\",\"pid\":" + std::to_string(process) +
         (thread < 0 ? "" : ",\"tid\":" + std::to_string(thread)) + ",\"args\":{\"name\":" + Json(text).dump() + "}}");
  }

  void slice(const Event& event, int rank, int lane, const std::string& text) {
    char times[160];
    std::snprintf(times, sizeof(times), "\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"step\":%d,\"bytes\":%.0f}",
                  event.begin * 1e6, (event.end - event.begin) * 1e6, event.step, event.bytes);
    line("{\"ph\":\"X\",\"name\":" + Json(text).dump() + ",\"cat\":\"" + to_string(event.what) +
         "\",\"pid\":" + std::to_string(islands_of_[as_index(rank)]) + ",\"tid\":" + std::to_string(track(rank, lane)) +
         "," + times + "}");
  }

  const Plan& plan_;
  std::map<std::string, int> islands_;
  std::vector<int> islands_of_;            // by rank
  std::vector<std::vector<double>> ends_;  // by rank, of its tracks but the first
  std::vector<std::vector<int>> members_;  // by reduction, their ranks
  std::string text_;
};

}  // namespace

std::string simulate_json(const std::string& text) {
  const Plan plan = plan_of(text);
  const Simulation simulation = simulate(plan);
  Json answer = answer_of(plan, simulation);
  const Json given = json::parse(text, "the plan");
  if (Fields(given, "the plan").boolean("timeline", false)) answer["timeline"] = simulation.events;
  return answer.dump();
}

std::string trace_json(const std::string& text) {
  const Plan plan = plan_of(text);
  Trace trace(plan);
  const Simulation simulation = simulate(plan);
  for (const Event& event : simulation.events) trace.add(event);
  return trace.text();
}

std::string actions_json(const std::string& schedule, int places, int stages, int micro_batches) {
  if (places < 1 || stages < 1 || micro_batches < 1) {
    refuse("a pipeline of " + std::to_string(places) + " ranks, " + std::to_string(stages) + " stages and " +
           std::to_string(micro_batches) + " micro-batches: give at least 1 of each");
  }
  if (static_cast<double>(stages) * micro_batches > kMaxForwards) {
    refuse("a pipeline of " + std::to_string(stages) + " stages and " + std::to_string(micro_batches) +
           " micro-batches has more than " + std::to_string(kMaxForwards) + " forwards: use fewer micro-batches");
  }
  return Json(actions_of(order_of(schedule), {places, stages, micro_batches}, "the pipeline")).dump();
}

}  // namespace atl::plan::simulated
