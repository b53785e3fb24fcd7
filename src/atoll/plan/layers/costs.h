// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "atoll/plan/layers/layers.h"

namespace atl::plan {

using DeviceCounts = std::map<std::size_t, int>;  ///< by class

/// Costs of a request's stages at one size of micro-batches, in constant time each. Holds a reference to the request,
/// which must outlive it. Classes are numbered as the request's devices; classes() stands for "no stage".
class LayerCosts {
 public:
  LayerCosts(const LayerRequest& request, std::int64_t micro_batch);

  const LayerRequest& request() const noexcept { return request_; }
  std::int64_t micro_batch() const noexcept { return micro_batch_; }
  std::size_t items() const noexcept { return request_.items.size(); }
  std::size_t classes() const noexcept { return request_.devices.size(); }
  /// Whether the request lets a stage recompute, or not recompute.
  bool allows(bool recompute) const noexcept {
    return request_.recompute != (recompute ? LayerRecompute::kNever : LayerRecompute::kAlways);
  }
  /// Ranges per device: 1 except for interleaved schedules.
  double chunks() const noexcept { return chunks_; }

  double forward(std::size_t device, std::size_t begin, std::size_t end) const {
    return forward_[device][end] - forward_[device][begin];
  }
  double compute(std::size_t device, std::size_t begin, std::size_t end, bool recompute) const {
    return total_[recompute][device][end] - total_[recompute][device][begin];
  }
  /// Seconds of adding gradients to those of earlier micro-batches.
  double accumulate(std::size_t device, std::size_t begin, std::size_t end) const {
    return added_[device][end] - added_[device][begin];
  }
  /// Seconds for both directions over the boundary after item end - 1.
  double send(std::size_t device, std::size_t next, std::size_t end) const {
    return next == classes() ? 0 : 2 * one_way(device, next, end);
  }
  /// Seconds for which a stage keeps the pipeline busy for each micro-batch after the first. Exactly non-increasing in
  /// `begin`.
  double busy(std::size_t device, std::size_t next, std::size_t begin, std::size_t end, bool recompute) const {
    const double seconds = compute(device, begin, end, recompute) + accumulate(device, begin, end);
    if (next == classes()) return seconds;
    const double way = one_way(device, next, end);
    return overlaps_ ? (seconds > way ? seconds : way) : seconds + 2 * way;
  }
  /// Running sums of compute over items: [items + 1] values.
  const std::vector<double>& totals(std::size_t device, bool recompute) const { return total_[recompute][device]; }

  /// Bytes of weights, gradients and optimiser, and of the activations of `in_flight` micro-batches. Non-increasing in
  /// `begin`.
  double memory(std::size_t begin, std::size_t end, bool recompute, double in_flight) const;
  double cap(std::size_t device) const { return cap_[device]; }
  /// Returns the micro-batches whose activations are held by the `from_end`-th stage (from 1) of `stages`.
  double in_flight(std::int64_t from_end, std::int64_t stages, std::int64_t micro_batches) const;
  /// Returns whether in_flight depends on `stages`.
  bool needs_stages() const noexcept;

  /// Returns the seconds of an all_reduce of `bytes` among these devices: a ring over the slowest link.
  double reduce_seconds(double bytes, const DeviceCounts& members) const;
  /// Returns the seconds that the ties cost once in a step of these stages.
  double tie_seconds(const std::vector<LayerStage>& stages) const;

  /// A step of one pipeline takes weight_of_busy(m) * (its longest busy) + (sum of compute and send) / chunks().
  double weight_of_busy(std::int64_t micro_batches) const { return static_cast<double>(micro_batches) - 1 / chunks_; }

  /// Lower bounds for `counts` devices by class. `spread`: seconds for each micro-batch after a pipeline's first if
  /// items could be divided at will, shared by parallel pipelines. `first_spread`: the same for the first.
  /// `longest_item`: no pipeline's longest stage is shorter. `least_fill`: no pipeline's sum of stages is smaller.
  double spread(const std::vector<std::int64_t>& counts) const { return spread(counts, &LayerCosts::steady_item); }
  double first_spread(const std::vector<std::int64_t>& counts) const { return spread(counts, &LayerCosts::first_item); }
  double longest_item(const std::vector<std::int64_t>& counts) const;
  double least_fill(const std::vector<std::int64_t>& counts) const;

 private:
  using OfItem = double (LayerCosts::*)(std::size_t device, std::size_t item) const;

  double first_item(std::size_t device, std::size_t item) const {
    return compute(device, item, item + 1, request_.recompute == LayerRecompute::kAlways);
  }
  double steady_item(std::size_t device, std::size_t item) const {
    return first_item(device, item) + accumulate(device, item, item + 1);
  }
  double one_way(std::size_t device, std::size_t next, std::size_t end) const {
    return chunks_ * request_.links[device * classes() + next].seconds(output_[end - 1]);
  }
  double spread(const std::vector<std::int64_t>& counts, OfItem seconds) const;
  double least(const std::vector<std::int64_t>& counts, std::size_t item, const std::vector<double>& prices,
               OfItem seconds) const;
  double most_kept(std::size_t begin, std::size_t end) const;

  const LayerRequest& request_;
  std::int64_t micro_batch_;
  double chunks_ = 1;
  bool overlaps_ = false;
  std::vector<std::vector<double>> forward_;   // [class][items + 1]
  std::vector<std::vector<double>> total_[2];  // [recompute][class][items + 1]
  std::vector<std::vector<double>> added_;     // [class][items + 1]
  std::vector<double> state_, kept_, inputs_;  // [items + 1]; inputs_: bytes kept with recomputation
  std::vector<double> output_;                 // [items]
  std::vector<std::vector<double>> most_;      // [level][item]: most bytes kept by one of 2^level items
  std::vector<double> cap_;
};

/// Prices a pipeline of these stages, of which begin, end, device and recompute are read, without the communication
/// between pipelines.
LayerPipeline priced(const LayerCosts& costs, std::vector<LayerStage> stages, std::int64_t micro_batches);

/// Assembles the plan of these priced pipelines: numbers its devices class by class, adds the reduction of gradients
/// between pipelines, and computes the totals.
LayerPlan assembled(const LayerCosts& costs, std::vector<LayerPipeline> pipelines);

}  // namespace atl::plan
