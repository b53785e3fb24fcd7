// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/work.h"

#include "atoll/pytorch/python/backend/library_failure.h"
#include "atoll/pytorch/python/errors.h"

namespace atl::pytorch {
namespace {

std::optional<std::vector<at::Tensor>> seen_by_profiler(const std::vector<at::Tensor>& inputs) {
  return at::hasCallbacks() ? std::optional(inputs) : std::nullopt;
}

}  // namespace

WorkAtoll::WorkAtoll(const WorkFacts& facts, const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
                     Operands operands, std::shared_ptr<Completions> completions, std::weak_ptr<Watchdog> watchdog,
                     std::weak_ptr<collectives::Group> group)
    : c10d::Work(facts.rank, facts.type, at::hasCallbacks() ? facts.title : nullptr, seen_by_profiler(inputs)),
      facts_(facts),
      outputs_(std::move(outputs)),
      completions_(std::move(completions)),
      watchdog_(std::move(watchdog)),
      group_(std::move(group)),
      operands_(std::move(operands)) {}

WorkAtoll::WorkAtoll(const WorkFacts& facts, const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
                     std::shared_ptr<StagedOperation> operation, std::shared_ptr<Completions> completions,
                     std::weak_ptr<Watchdog> watchdog, std::weak_ptr<collectives::Group> group)
    : WorkAtoll(facts, inputs, std::move(outputs), Operands(), std::move(completions), std::move(watchdog),
                std::move(group)) {
  staged_.push_back(std::move(operation));
  is_staged_ = true;
}

c10::intrusive_ptr<WorkAtoll> WorkAtoll::self() {
  return c10::intrusive_ptr<WorkAtoll>::unsafe_reclaim_from_nonowning(this);
}

void WorkAtoll::expect_parts(std::size_t count) {
  const std::lock_guard lock(state_mutex_);
  parts_left_ = count;
}

void WorkAtoll::part_done(const std::exception_ptr& error, bool may_block) {
  {
    const std::lock_guard lock(state_mutex_);
    if (error && !first_error_) first_error_ = as_torch(error);
    if (--parts_left_ > 0) return;
  }
  settle(may_block);
}

void WorkAtoll::done_on_caller(const std::exception_ptr& error) {
  {
    const std::lock_guard lock(state_mutex_);
    first_error_ = as_torch(error);
  }
  settle(/*may_block=*/true);
  if (const auto failed = exception()) throw_here(failed);
}

void WorkAtoll::throw_here(const std::exception_ptr& error) const {
  if (const auto group = group_.lock()) note_raised(watchdog_, *group);
  std::rethrow_exception(error);
}

// Callbacks of the future may wait for anything, and copies to strided tensors or a library take time.
bool WorkAtoll::must_block() const {
  return future_ || operands_.needs_copy_back() || (is_staged_ && !first_error_ && staged_.front()->must_finish());
}

void WorkAtoll::complete_outputs() {
  operands_.copy_back();
  if (is_staged_) staged_.front()->finish();
}

void WorkAtoll::settle(bool may_block) {
  std::exception_ptr error;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::vector<Listener> listeners;
  Operands released;
  {
    std::unique_lock lock(state_mutex_);
    if (must_block()) {
      lock.unlock();
      if (!may_block) {
        completions_->post([self = self()] { self->settle(/*may_block=*/true); });
        return;
      }
      try {
        if (!first_error_) complete_outputs();
      } catch (const Error& failure) {
        const auto group = group_.lock();
        first_error_ = as_torch(group ? account_of_library_failure(*group, failure) : std::current_exception());
      } catch (...) {
        first_error_ = std::current_exception();
      }
      lock.lock();
    }
    settled_ = true;
    error = first_error_;
    future = future_;
    listeners.swap(listeners_);
    std::swap(released, operands_);
  }
  if (is_staged_) staged_.front()->release();
  if (future) {
    error = mark_future(*future, error);
    const std::lock_guard lock(state_mutex_);
    first_error_ = error;
  }
  finish(error);
  for (const Listener& listener : listeners) listener(error);
}

// The future records its own events on the stream on which the results arrive. Returns the error with which the future
// ends: `error`, or one that happened here.
std::exception_ptr WorkAtoll::mark_future(c10::ivalue::Future& future, const std::exception_ptr& error) const noexcept {
  try {
    if (error) {
      future.setErrorIfNeeded(error);
      return error;
    }
    for (const auto& operation : staged_) operation->note_reliance(/*is_future=*/true);
    const auto complete = [&] {
      for (const auto& operation : staged_) operation->wait_on_current_stream();
      future.markCompleted(c10::IValue(outputs_));
    };
    staged_.empty() ? complete() : staged_.front()->on_arrival(complete);
    return nullptr;
  } catch (...) {
    return error ? error : mark_future(future, std::current_exception());
  }
}

void WorkAtoll::consists_of(const std::vector<c10::intrusive_ptr<WorkAtoll>>& parts) {
  expect_parts(parts.size());
  {
    const std::lock_guard lock(state_mutex_);
    for (const auto& part : parts) staged_.insert(staged_.end(), part->staged_.begin(), part->staged_.end());
  }
  for (const auto& part : parts) {
    part->when_done([self = self()](const std::exception_ptr& error) { self->part_done(error); });
  }
}

void WorkAtoll::wait_for_device() const {
  for (const auto& operation : staged_) {
    try {
      operation->note_reliance(/*is_future=*/false);
    } catch (const Error&) {
      throw_here(as_torch(std::current_exception()));
    }
    operation->wait_on_current_stream();
  }
}

void WorkAtoll::set_source_rank(int rank) {
  const std::lock_guard lock(state_mutex_);
  source_rank_ = rank;
}

void WorkAtoll::when_done(Listener listener) {
  std::exception_ptr error;
  {
    const std::lock_guard lock(state_mutex_);
    if (!settled_) {
      listeners_.push_back(std::move(listener));
      return;
    }
    error = first_error_;
  }
  listener(error);
}

bool WorkAtoll::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto completed = [this] { return completed_; };
  if (timeout <= kNoTimeout) {
    cv_.wait(lock, completed);
  } else if (!cv_.wait_for(lock, timeout, completed)) {
    throw_as_torch(Error(ErrorKind::kTimeout, "Timed out waiting " + std::to_string(timeout.count()) + "ms for " +
                                                  facts_.title + ", sequence " + std::to_string(facts_.sequence) +
                                                  ", on rank " + std::to_string(facts_.rank) +
                                                  "; the operation continues until its own deadline"));
  }
  const std::exception_ptr error = exception_;
  lock.unlock();
  if (error) throw_here(error);
  wait_for_device();
  return true;
}

std::vector<at::Tensor> WorkAtoll::result() {
  TORCH_CHECK(isCompleted(), "Work needs to be completed before calling result(): call wait() first");
  return outputs_;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkAtoll::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::exception_ptr error;
  {
    const std::lock_guard lock(state_mutex_);
    if (future_) return future_;
    std::vector<c10::Device> devices;
    if (!staged_.empty() && staged_.front()->on_accelerator()) devices.push_back(staged_.front()->device());
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    future = future_;
    if (!settled_) return future;
    error = first_error_;
  }
  mark_future(*future, error);
  return future;
}

int WorkAtoll::sourceRank() const {
  const std::lock_guard lock(state_mutex_);
  TORCH_CHECK(source_rank_ >= 0, "source_rank() is known for a completed receive only");
  return source_rank_;
}

void WorkAtoll::abort() {
  if (const auto group = group_.lock()) group->abort(std::string("Work.abort() was called on ") + facts_.title);
}

}  // namespace atl::pytorch
