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

/// The timeout of a wait that has none.
inline constexpr std::chrono::hours kMaxStoreWait{24};

/// Calls `body`, which uses `store`, and returns when it has ended or the deadline has passed; returns whether it has
/// ended. A TCPStore waits forever for a server that is reachable but does not answer, such as a stopped one. So for a
/// TCPStore `body` runs on a separate thread, which may be left behind: it must own all that it uses. Other stores
/// observe their timeouts themselves. Throws Error(kUnavailable) if no thread can be started.
bool ends_in_time(const c10::intrusive_ptr<c10d::Store>& store, Deadline deadline, std::function<void()> body);

/// Returns "at host:port ", or nothing if the store has no server.
std::string whereabouts(const c10::intrusive_ptr<c10d::Store>& store);

/// Returns the first line of the message of what a store has thrown.
std::string first_line(const std::exception& error);

/// Returns the result of `body`, which uses `store` and owns all else that it uses. Throws Error(kStore) if it throws
/// or does not answer in time; `action` describes the call ("set key ...").
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
