// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/staged_call.h"

#include <utility>

#include "atoll/collectives/refusals.h"
#include "atoll/pytorch/python/backend/library_failure.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/staging/plain_text.h"

namespace atl::pytorch {

void StagedIssue::stored(std::exception_ptr error) {
  try {
    const auto library = chunks_left.fetch_sub(1) == 1 ? island.lock() : nullptr;
    if (library) library->watch_results(operation, timeout);
  } catch (...) {
    if (!error) error = std::current_exception();
  }
  const auto live = error ? group.lock() : nullptr;
  if (live) live->fail(Error(ErrorKind::kUnavailable, "copying a result back failed: " + text_of(error)));
  work->part_done(error, /*may_block=*/on_caller && caller == std::this_thread::get_id());
}

bool StagedCall::is_loaded() {
  try {
    return queue_->is_loaded(*entry_);
  } catch (const Error& error) {
    const auto live = issue_->group.lock();
    if (!live) throw;
    std::rethrow_exception(account_of_library_failure(*live, error));
  }
}

void StagedCall::crossed() {
  queue_->crossed(entry_);
  run_issuer();
}

void StagedCall::failed(const std::exception_ptr& error) {
  if (is_refusal(error)) {
    queue_->give_up(entry_);
    run_issuer();
  }
  issue_->work->part_done(error, /*may_block=*/issue_->on_caller);
}

// A step of the library may block until other ranks issue it too, and the group's thread still has chunks to send.
void StagedCall::run_issuer() {
  const bool may_block = issue_->on_caller || !issue_->has_library;
  may_block ? library_queue_->issuer()->run() : library_queue_->run_soon();
}

bool is_refusal(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const collectives::OperationRefused&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace atl::pytorch
