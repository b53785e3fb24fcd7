// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace atl::plan::simulated {

/// What a rank does with one micro-batch on one stage. kInput and kWeight are the two parts of a backward: the gradient
/// of the stage's input, which the stage before waits for, and those of its weights, which can wait.
enum class Work : std::uint8_t { kForward, kBackward, kInput, kWeight };

struct Action {
  Work work = Work::kForward;
  std::int32_t stage = 0;
  std::int32_t micro_batch = 0;
  bool operator==(const Action&) const = default;
};

/// "0F3" is the forward of micro-batch 3 on stage 0, as torch.distributed.pipelining writes it: F, B, I or W.
std::string to_text(const Action& action);
/// Error(kInvalidArgument) for other texts, also those of PyTorch's that move bytes: transfers follow from the others.
Action action_of(const std::string& text);

/// How the places of a pipeline order their work. Names and orders are those of torch.distributed.pipelining.
enum class Order : std::uint8_t {
  kGPipe,        ///< "GPipe" (Huang et al., 2019): all forwards, then all backwards
  k1F1B,         ///< "1F1B" (Narayanan et al., 2019)
  kInterleaved,  ///< "Interleaved1F1B" (Narayanan et al., arXiv 2104.04473): depth first, several stages per place
  kLoopedBfs,    ///< "LoopedBFS" (Lamy-Poirier, arXiv 2211.05953): breadth first
  kZeroBubble,   ///< "InterleavedZeroBubble", with one stage per place "ZB1P" (Qi et al., arXiv 2401.10241)
  kZeroBubbleV,  ///< "ZBVZeroBubble" (the same, section 6): two stages per place, in a V
  kCustom,       ///< "custom": given with the plan
};

/// Upper and lower case do not matter. Error(kInvalidArgument) for a name that is not known.
Order order_of(const std::string& name);
const char* to_string(Order order) noexcept;

struct Shape {
  int places = 1;  ///< ranks of the pipeline
  int stages = 1;
  int micro_batches = 1;
};

/// Where a stage lies: in turn, or for kZeroBubbleV in a V.
int place_of(Order order, const Shape& shape, int stage) noexcept;

/// What each place does, in order. Error(kInvalidArgument) that begins with `name`, which is that of the pipeline,
/// where the order is not made for the shape, and for kCustom.
std::vector<std::vector<Action>> actions_of(Order order, const Shape& shape, const std::string& name);

/// The place of each stage, from the actions of all places. Error(kInvalidArgument) that begins with `name` unless each
/// stage is on one place alone and does exactly one forward of each micro-batch, and one backward or its two parts.
std::vector<int> places_of(const std::vector<std::vector<Action>>& actions, const Shape& shape,
                           const std::string& name);

}  // namespace atl::plan::simulated
