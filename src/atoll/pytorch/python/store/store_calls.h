// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/pytorch/aten/torch.h"

namespace atl::pytorch {

/// As good as for ever: what a wait without an end is given.
inline constexpr std::chrono::hours kMaxStoreWait{24};

/// Calls `body`, which uses `store`, and returns when it has ended or the time is over; whether it has ended. A TCPStore waits
/// for ever for a server that is there and does not answer, a stopped one or one behind a dead link. So `body` runs on a thread
/// of its own then, which is left behind if need be: it has to own all it uses. Any other store keeps time by itself. Throws
/// Error(kUnavailable) without a thread to spare.
bool ends_in_time(const c10::intrusive_ptr<c10d::Store>& store, Deadline deadline, std::function<void()> body);

/// "at host:port ", or nothing where the store has no server.
std::string whereabouts(const c10::intrusive_ptr<c10d::Store>& store);

/// What a store throws, in one line.
std::string first_line(const std::exception& error);

/// What `body` returns, which uses `store` and owns all else it uses. Throws Error(kStore) when it throws or does not answer in
/// time; `action` is what Atoll was doing ("set key ...").
template <typename Body>
auto store_call(const c10::intrusive_ptr<c10d::Store>& store, Deadline deadline, const std::string& action, Body body) {
  using Result = std::invoke_result_t<Body>;
  constexpr bool kIsVoid = std::is_void_v<Result>;
  struct Outcome {
    std::optional<std::conditional_t<kIsVoid, bool, Result>> result;
    std::optional<std::string> failure;
  };
  const auto outcome = std::make_shared<Outcome>();
  const bool ended = ends_in_time(store, deadline, [outcome, body = std::move(body)] {
    try {
      if constexpr (kIsVoid) {
        body();
      } else {
        outcome->result = body();
      }
    } catch (const std::exception& error) {
      outcome->failure = first_line(error);
    }
  });
  if (!ended) {
    throw Error(ErrorKind::kStore,
                "the job's store " + whereabouts(store) + "did not answer in time while Atoll " + action);
  }
  if (outcome->failure) {
    throw Error(ErrorKind::kStore, "the job's store failed while Atoll " + action + ": " + *outcome->failure);
  }
  if constexpr (!kIsVoid) return std::move(*outcome->result);
}

}  // namespace atl::pytorch
