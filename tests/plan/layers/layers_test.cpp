// SPDX-License-Identifier: Apache-2.0
#include "atoll/plan/layers/layers.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/plan/layers/cases.h"

namespace atl::plan {
namespace {

using test::any_layers;
using test::brute_seconds;
using test::Dice;
using test::even_layers;
using test::layer_devices;
using test::refusal;
using Counts = std::vector<std::int64_t>;

// What a request is at micro-batches of `size`, written for one sample.
LayerRequest at_size(const LayerRequest& request, std::int64_t size) {
  LayerRequest once = request;
  for (LayerItem& item : once.items) {
    for (std::vector<LayerTime>& times : item.times) {
      const auto found = std::find_if(times.begin(), times.end(),
                                      [&](const LayerTime& time) { return time.samples == static_cast<double>(size); });
      times = {{1, found->forward, found->backward, found->accumulate}};
    }
    item.kept_bytes *= static_cast<double>(size);
    if (item.recompute_bytes) *item.recompute_bytes *= static_cast<double>(size);
    item.output_bytes *= static_cast<double>(size);
  }
  return once;
}

// Returns the least over all placements and divisions for one number of pipelines; without gradients to reduce.
class Brute {
 public:
  explicit Brute(LayerRequest request) : request_(std::move(request)) {}

  double seconds(const Counts& left, std::int64_t replicas, std::int64_t micro_batches) {
    if (replicas == 1) return pipeline(left, micro_batches);
    double best = HUGE_VAL;
    Counts part(left.size(), 0);
    const std::function<void(std::size_t)> choose = [&](std::size_t device) {
      if (device == left.size()) {
        if (std::accumulate(part.begin(), part.end(), std::int64_t{0}) == 0) return;
        Counts rest = left;
        for (std::size_t i = 0; i < rest.size(); ++i) rest[i] -= part[i];
        if (std::accumulate(rest.begin(), rest.end(), std::int64_t{0}) == 0) return;
        for (std::int64_t m = 1; m <= micro_batches - (replicas - 1); ++m) {
          const double first = pipeline(part, m);
          if (first < best) best = std::min(best, std::max(first, seconds(rest, replicas - 1, micro_batches - m)));
        }
        return;
      }
      for (std::int64_t count = 0; count <= left[device]; ++count) {
        part[device] = count;
        choose(device + 1);
      }
      part[device] = 0;
    };
    choose(0);
    return best;
  }

 private:
  double pipeline(const Counts& counts, std::int64_t m) {
    const auto [place, is_new] = known_.try_emplace({counts, m}, 0);
    if (is_new) place->second = brute_seconds(request_, counts, m);
    return place->second;
  }

  LayerRequest request_;
  std::map<std::pair<Counts, std::int64_t>, double> known_;
};

LayerRequest any_search(Dice& dice) {
  LayerRequest request = any_layers(dice, {4, 2, 4});
  for (LayerItem& item : request.items) item.gradient_bytes = 0;
  for (LayerTie& tie : request.ties) tie.gradient_bytes = 0;
  if (request.schedule == LayerSchedule::kInterleaved) request.schedule = LayerSchedule::k1F1B;
  request.micro_batches = {1, 2};
  request.batch = 2 * dice.integer(1, 3);
  request.replicas = {1, 2, 3};
  for (LayerItem& item : request.items) {
    for (std::vector<LayerTime>& times : item.times) {
      const LayerTime once = times.front();
      times.push_back({2, once.forward * dice.real(1, 2), once.backward * dice.real(1, 2), once.accumulate});
    }
  }
  return request;
}

// Proves P-2 and P-5.
TEST(Layers, EqualBruteForceOverReplicasSharesAndMicroBatches) {
  Dice dice(51);
  int feasible = 0;
  int replicated = 0;
  int refused = 0;
  for (int i = 0; i < 400 && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(i);
    const LayerRequest request = any_search(dice);
    Counts counts;
    for (const LayerDevices& devices : request.devices) counts.push_back(devices.count);
    double best = HUGE_VAL;
    for (const std::int64_t size : request.micro_batches) {
      Brute brute(at_size(request, size));
      for (const std::int64_t replicas : request.replicas) {
        if (replicas > std::accumulate(counts.begin(), counts.end(), std::int64_t{0})) continue;
        if (replicas > request.batch / size) continue;
        best = std::min(best, brute.seconds(counts, replicas, request.batch / size));
      }
    }
    LayerAnswer answer;
    if (!refusal([&] { answer = plan_layers(request); }).empty()) {  // more devices than items
      ASSERT_EQ(best, HUGE_VAL);
      ++refused;
      continue;
    }
    ASSERT_EQ(answer.plan.has_value(), best < HUGE_VAL);
    if (!answer.plan) {
      ASSERT_FALSE(answer.reason.empty());
      continue;
    }
    ASSERT_NEAR(answer.plan->seconds, best, 1e-9 * (1 + best));
    ASSERT_LE(answer.bound, best * (1 + 1e-9));
    ASSERT_TRUE(answer.plan->fits);
    ASSERT_TRUE(answer.proof.search && answer.proof.stages);
    const LayerPlan again = price_layers(request, *answer.plan);
    ASSERT_EQ(again.seconds, answer.plan->seconds);
    ++feasible;
    replicated += answer.plan->pipelines.size() > 1 ? 1 : 0;
  }
  EXPECT_GT(feasible, 150);
  EXPECT_GT(replicated, 50);
  EXPECT_GT(refused, 0);
}

// Proves P-9.
TEST(Layers, NearestPlansAreFeasibleAndTheMissingBytesAreSharp) {
  Dice dice(52);
  int infeasible = 0;
  std::map<std::string, int> changes;
  for (int i = 0; i < 1500 && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(i);
    LayerRequest request = any_layers(dice, {4, 2, 3});
    for (LayerDevices& devices : request.devices) devices.memory_bytes = static_cast<double>(dice.integer(0, 60));
    request.margin = 0;
    if (dice.chance(0.5)) request.recompute = LayerRecompute::kNever;
    LayerAnswer answer;
    if (!refusal([&] { answer = plan_layers(request); }).empty() || answer.plan) continue;
    ++infeasible;
    for (const LayerChange& change : answer.nearest) {
      ++changes[change.change];
      if (change.change != "memory") {
        ASSERT_TRUE(change.plan.fits);
        continue;
      }
      const auto missing_at = [&](double bytes) {
        LayerRequest larger = request;
        for (LayerDevices& devices : larger.devices) devices.memory_bytes += bytes;
        Counts counts;
        for (const LayerDevices& devices : larger.devices) counts.push_back(devices.count);
        return brute_seconds(larger, counts, request.batch);
      };
      ASSERT_NEAR(missing_at(change.missing_bytes), change.plan.seconds, 1e-9 * (1 + change.plan.seconds));
      ASSERT_EQ(missing_at(change.missing_bytes - 1), HUGE_VAL);
      ASSERT_TRUE(answer.tightest.has_value());
      ASSERT_NEAR(answer.tightest->memory_bytes - answer.tightest->cap_bytes, change.missing_bytes, 1);
    }
  }
  EXPECT_GT(infeasible, 200);
  for (const char* change : {"recompute", "schedule", "leave_out", "memory"}) EXPECT_GT(changes[change], 0) << change;
}

TEST(Layers, ASmallerMicroBatchIsNamedWhereItFits) {
  LayerRequest request = even_layers(4, {1}, {2}, 8);
  for (LayerItem& item : request.items) item.kept_bytes = 10;
  request.micro_batches = {4};
  request.devices[0].memory_bytes = 80;  // two items, two micro-batches of two samples
  const LayerAnswer answer = plan_layers(request);
  ASSERT_FALSE(answer.plan.has_value());
  ASSERT_FALSE(answer.nearest.empty());
  EXPECT_EQ(answer.nearest.front().change, "micro_batch");
  EXPECT_EQ(answer.nearest.front().plan.micro_batch, 2);
  EXPECT_NE(answer.reason.find("micro-batches of 2 samples"), std::string::npos) << answer.reason;
  EXPECT_NE(answer.reason.find("item1 to item3 on class0 needs"), std::string::npos) << answer.reason;
}

TEST(Layers, TheMostReplicasThatFitAreNamed) {
  LayerRequest request = even_layers(8, {1}, {64}, 64);
  for (LayerItem& item : request.items) item.weight_bytes = 10;
  request.replicas = {64};
  request.most_placements = 20;
  for (const std::int64_t held : {7, 4, 2, 1}) {  // items that a device holds, of 8
    SCOPED_TRACE(held);
    request.devices[0].memory_bytes = 10 * static_cast<double>(held);
    const LayerAnswer answer = plan_layers(request);
    ASSERT_FALSE(answer.plan.has_value());
    std::vector<std::size_t> found;
    for (const LayerChange& change : answer.nearest) {
      if (change.change == "replicas") found.push_back(change.plan.pipelines.size());
    }
    EXPECT_EQ(found, (std::vector<std::size_t>{static_cast<std::size_t>(64 / ((8 + held - 1) / held))}));
  }
}

TEST(Layers, ChangesWithTooManyStatesAreLeftOut) {
  LayerRequest request = even_layers(32, std::vector<double>(8, 1), std::vector<std::int64_t>(8, 8), 64);
  for (LayerItem& item : request.items) item.weight_bytes = 10;
  for (LayerDevices& devices : request.devices) {
    devices.kind = "one";
    devices.memory_bytes = 5;
  }
  request.replicas = {16};  // with 2, more than 2^24 states
  request.most_placements = 1;
  const LayerAnswer answer = plan_layers(request);
  EXPECT_FALSE(answer.plan.has_value());
  ASSERT_FALSE(answer.nearest.empty());
  EXPECT_EQ(answer.nearest.back().change, "memory");
}

// Scales, memory, more devices, names of classes: what must not matter does not, what helps does not harm.
TEST(Layers, KeepTheirProperties) {
  Dice dice(53);
  int feasible = 0;
  for (int i = 0; i < 500 && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(i);
    LayerRequest request = any_layers(dice, {6, 2, 4});
    LayerAnswer answer;
    if (!refusal([&] { answer = plan_layers(request); }).empty() || !answer.plan) continue;
    ++feasible;
    const double seconds = answer.plan->seconds;
    const double small = 1e-9 * (1 + seconds);

    LayerRequest scaled = request;
    for (LayerItem& item : scaled.items) {
      for (auto& times : item.times) {
        const LayerTime once = times.front();
        times.front() = {1, once.forward / 4, once.backward / 4, once.accumulate / 4};
      }
    }
    for (LayerLink& link : scaled.links) link = {link.latency / 4, link.seconds_per_byte / 4};
    ASSERT_EQ(plan_layers(scaled).plan->seconds, seconds / 4);

    LayerRequest larger = request;
    for (LayerDevices& devices : larger.devices) devices.memory_bytes += static_cast<double>(dice.integer(0, 30));
    ASSERT_LE(plan_layers(larger).plan->seconds, seconds + small);

    LayerRequest free = request;
    free.leave_out = true;
    const double fewest = plan_layers(free).plan->seconds;
    ASSERT_LE(fewest, seconds + small);
    ++free.devices[0].count;
    ASSERT_LE(plan_layers(free).plan->seconds, fewest + small);

    // The last class in two that are alike.
    LayerRequest parted = request;
    const std::size_t width = request.devices.size();
    if (parted.devices.back().count < 2) continue;
    --parted.devices.back().count;
    parted.devices.push_back(
        layer_devices("like " + parted.devices.back().name, 1, parted.devices.back().memory_bytes));
    for (LayerItem& item : parted.items) item.times.push_back(item.times.back());
    parted.links.clear();
    for (std::size_t a = 0; a <= width; ++a) {
      for (std::size_t b = 0; b <= width; ++b) {
        parted.links.push_back(request.links[std::min(a, width - 1) * width + std::min(b, width - 1)]);
      }
    }
    ASSERT_NEAR(plan_layers(parted).plan->seconds, seconds, small);
  }
  EXPECT_GT(feasible, 250);
}

// Blocks of one unit and a head, as in the notes: per-GPU rate of the mixed pair over that of the NVIDIA pair, at many
// micro-batches.
TEST(Layers, ExplainThePublishedPairs) {
  struct Pair {
    std::size_t blocks;
    double head, amd;         // amd: rate of AMD alone over NVIDIA alone
    std::size_t homogeneous;  // blocks on the first stage of two NVIDIA devices
    std::size_t amd_blocks;   // of the mixed pair
    double amd_last, nvidia_last;
  };
  for (const Pair& pair :
       {Pair{32, 525.0 / 218, 0.973, 16, 15, 1.029, 0.948}, Pair{28, 545.0 / 233, 0.923, 15, 12, 0.959, 0.836}}) {
    LayerRequest request = even_layers(pair.blocks + 1, {1, 1 / pair.amd}, {2, 1}, 100000);
    for (LayerTime* time : {&request.items.back().times[0][0], &request.items.back().times[1][0]}) {
      *time = {1, time->forward * pair.head, time->backward * pair.head};
    }
    const auto period = [&](std::size_t cut, std::size_t first, std::size_t last) {
      LayerPlan plan;
      plan.micro_batch = 1;
      plan.pipelines.resize(1);
      plan.pipelines[0].micro_batches = request.batch;
      plan.pipelines[0].stages.resize(2);
      plan.pipelines[0].stages[0] = {0, cut, first};
      plan.pipelines[0].stages[1] = {cut, pair.blocks + 1, last};
      return price_layers(request, plan).pipelines[0].period;
    };
    const double nvidia = period(pair.homogeneous, 0, 0);
    EXPECT_NEAR(nvidia / period(pair.blocks - pair.amd_blocks, 0, 1), pair.amd_last, 0.001);
    EXPECT_NEAR(nvidia / period(pair.amd_blocks, 1, 0), pair.nvidia_last, 0.001);

    // Ours is at least as good as either, and within a block of the bound.
    LayerRequest mixed = request;
    mixed.devices[0].count = 1;
    const LayerAnswer ours = plan_layers(mixed);
    ASSERT_TRUE(ours.plan.has_value());
    EXPECT_GE(nvidia / ours.plan->pipelines[0].period + 1e-9, pair.amd_last - 0.001);
    EXPECT_LT(ours.plan->seconds / ours.bound, 1.04);
    EXPECT_FALSE(ours.homogeneous_wins);
  }
}

// Proves P-8.
TEST(Layers, SayWhenDevicesOfOneKindAreFaster) {
  LayerRequest request = even_layers(4, {1, 100}, {2, 1}, 8);
  const LayerAnswer answer = plan_layers(request);
  ASSERT_TRUE(answer.plan && answer.homogeneous);
  EXPECT_TRUE(answer.homogeneous_wins);
  EXPECT_EQ(answer.homogeneous_kind, "class0");
  EXPECT_DOUBLE_EQ(answer.homogeneous->seconds,
                   4.0 * 4);  // two pipelines of one device, four micro-batches of four items
  ASSERT_FALSE(answer.notes.empty());
  EXPECT_NE(answer.notes.front().find("class0 alone"), std::string::npos);
  request.leave_out = true;
  request.replicas = {1, 2};
  const LayerAnswer free = plan_layers(request);
  EXPECT_FALSE(free.homogeneous_wins);
  EXPECT_DOUBLE_EQ(free.plan->seconds, 16);
}

TEST(Layers, GradientsBetweenReplicasArePriced) {
  LayerRequest request = even_layers(2, {1}, {4}, 4);
  for (LayerItem& item : request.items) item.gradient_bytes = 10;
  request.links = {{0.5, 0.1}};
  LayerPlan plan;
  plan.micro_batch = 1;
  plan.pipelines.resize(2);
  for (LayerPipeline& pipeline : plan.pipelines) {
    pipeline.micro_batches = 2;
    pipeline.stages.resize(2);
    pipeline.stages[0] = {0, 1, 0};
    pipeline.stages[1] = {1, 2, 0};
  }
  // Stages of 2 and 1 s (1 s and a latency of 0.5 s each way), then 2 steps of 0.5 s and 5 bytes.
  const double alone = 1 * 2 + 3;
  EXPECT_DOUBLE_EQ(price_layers(request, plan).seconds, alone + 2 * (0.5 + 0.5));
  // Overlapped, the last stage reduces while the first goes back; the first still ends last.
  request.gradients = LayerOverlap::kOverlapped;
  EXPECT_DOUBLE_EQ(price_layers(request, plan).seconds, alone + 2 * (0.5 + 0.5));
  request.items[0].gradient_bytes = 0;
  EXPECT_DOUBLE_EQ(price_layers(request, plan).seconds, alone + 2 - (0.5 + 0.5));
  request.replicas = {2};
  const LayerAnswer answer = plan_layers(request);
  EXPECT_FALSE(answer.proof.search);
}

TEST(Layers, TiesKeepItemsTogetherOrCostAReduction) {
  LayerRequest request = even_layers(4, {1}, {2}, 4);
  request.links = {{0.25, 0.5}};
  for (const std::size_t item : {0, 3}) request.items[item].weight_bytes = request.items[item].gradient_bytes = 2;
  request.ties.push_back({{0, 3}, 2, 2, 0, true});
  const LayerAnswer apart = plan_layers(request);
  ASSERT_TRUE(apart.plan.has_value());
  // Stages of 2 items, of which the first sends for 2 * 0.25 s; two steps of a ring, with half of the bytes each.
  EXPECT_DOUBLE_EQ(apart.plan->pipelines[0].ties, 2 * (0.25 + 0.5 * 1));
  EXPECT_DOUBLE_EQ(apart.plan->seconds, 3 * 2.5 + 4.5 + 1.5);
  EXPECT_EQ(apart.plan->pipelines[0].stages[0].memory_bytes, 4);
  request.ties[0].apart = false;
  EXPECT_NE(refusal([&] { price_layers(request, *apart.plan); }).find("item0 and item3 on different stages"),
            std::string::npos);
  EXPECT_FALSE(plan_layers(request).plan.has_value()) << "two devices must both be used";
  request.leave_out = true;
  const LayerAnswer together = plan_layers(request);
  ASSERT_TRUE(together.plan.has_value());
  EXPECT_EQ(together.plan->pipelines[0].stages.size(), 1u);
  EXPECT_EQ(together.plan->pipelines[0].stages[0].memory_bytes, 4);
  EXPECT_DOUBLE_EQ(together.plan->seconds, 16);
}

}  // namespace
}  // namespace atl::plan
