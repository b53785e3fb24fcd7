// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace atl::plan::simulated {

/// An action of a rank for one micro-batch on one stage. kInput and kWeight are the two parts of a backward: the
/// gradient of the stage's input, which the stage before waits for, and those of its weights, which can be postponed.
enum class Work : std::uint8_t { kForward, kBackward, kInput, kWeight };

struct Action {
  Work work = Work::kForward;
  std::int32_t stage = 0;
  std::int32_t micro_batch = 0;
  bool operator==(const Action&) const = default;
};

/// Formats an action as torch.distributed.pipelining does: F, B, I or W, so that "0F3" is the forward of micro-batch 3
/// on stage 0.
std::string to_text(const Action& action);
/// Parses an action. Throws Error(kInvalidArgument) for other text, including PyTorch's actions that move bytes:
/// transfers follow from the others.
Action action_of(const std::string& text);

/// The order of work of a pipeline's places. Names and orders are those of torch.distributed.pipelining.
enum class Order : std::uint8_t {
  kGPipe,        ///< "GPipe" (Huang et al., 2019): all forwards, then all backwards
  k1F1B,         ///< "1F1B" (Narayanan et al., 2019)
  kInterleaved,  ///< "Interleaved1F1B" (Narayanan et al., arXiv 2104.04473): depth first, several stages per place
  kLoopedBfs,    ///< "LoopedBFS" (Lamy-Poirier, arXiv 2211.05953): breadth first
  kZeroBubble,   ///< "InterleavedZeroBubble", with one stage per place "ZB1P" (Qi et al., arXiv 2401.10241)
  kZeroBubbleV,  ///< "ZBVZeroBubble" (the same, section 6): two stages per place, in a V
  kCustom,       ///< "custom": actions given with the plan
};

/// Parses a name, ignoring case. Throws Error(kInvalidArgument) for an unknown name.
Order order_of(const std::string& name);
const char* to_string(Order order) noexcept;

struct Shape {
  int places = 1;  ///< ranks of the pipeline
  int stages = 1;
  int micro_batches = 1;
};

/// Returns the actions of each place, in order. Throws Error(kInvalidArgument) that begins with `name`, the pipeline's
/// name, if the order does not support the shape, and for kCustom.
std::vector<std::vector<Action>> actions_of(Order order, const Shape& shape, const std::string& name);

/// Returns the place of each stage, from the actions of all places. Throws Error(kInvalidArgument) that begins with
/// `name` unless each stage is on a single place and does exactly one forward of each micro-batch, and one backward or
/// its two parts.
std::vector<int> places_of(const std::vector<std::vector<Action>>& actions, const Shape& shape,
                           const std::string& name);

}  // namespace atl::plan::simulated
