// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/engine/engine_thread.h"

#include <cxxabi.h>
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/infer/engine/caller_check.h"

namespace atl::infer {
namespace {

constexpr std::chrono::milliseconds kEngineCloseTimeout{200};

[[noreturn]] void throw_as_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kInvalidArgument, error.what());
  }
}

}  // namespace

struct EngineThread::State {
  std::shared_ptr<LocalEngine> engine;  // used by the thread alone
  std::mutex mutex;
  std::condition_variable changed;
  Job job;  // null: there is none, or the thread has taken it
  bool is_running = false;
  bool is_stopping = false;
  std::exception_ptr failure;
};

EngineThread::EngineThread(std::shared_ptr<LocalEngine> engine) : state_(std::make_shared<State>()) {
  state_->engine = std::move(engine);
  thread_ = std::thread([state = state_] { work(state); });
}

EngineThread::~EngineThread() {
  std::unique_lock lock(state_->mutex);
  state_->is_stopping = true;
  state_->changed.notify_all();
  const bool is_idle = state_->changed.wait_for(lock, kEngineCloseTimeout, [this] { return !state_->is_running; });
  lock.unlock();
  if (is_idle) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void EngineThread::work(const std::shared_ptr<State>& state) {
  pthread_setname_np(pthread_self(), "atoll-engine");
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->changed.wait(lock, [&] { return state->is_stopping || state->job; });
    if (state->is_stopping) return;
    Job job = std::exchange(state->job, nullptr);
    lock.unlock();
    std::exception_ptr failure;
    try {
      job(*state->engine);
    } catch (const abi::__forced_unwind&) {
      throw;  // thread cancellation, which must not be swallowed
    } catch (...) {
      failure = std::current_exception();
    }
    job = nullptr;  // releases what it holds before the waiting thread is woken
    lock.lock();
    state->failure = failure;
    state->is_running = false;
    state->changed.notify_all();
  }
}

bool EngineThread::run(Job job, std::chrono::duration<double> limit, const std::function<void()>& check) {
  std::unique_lock lock(state_->mutex);
  if (state_->is_running) throw Error(ErrorKind::kInternal, "an engine was given a job while it had one");
  state_->job = std::move(job);
  state_->is_running = true;
  state_->failure = nullptr;
  state_->changed.notify_all();
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(limit);
  for (;;) {
    const auto look = check ? std::min(until, Clock::now() + CallerCheck::kPeriod) : until;
    if (state_->changed.wait_until(lock, look, [this] { return !state_->is_running; })) break;
    if (look == until) return false;
    lock.unlock();
    check();
    lock.lock();
  }
  if (state_->failure) throw_as_error(std::exchange(state_->failure, nullptr));
  return true;
}

bool EngineThread::is_busy() const {
  const std::lock_guard lock(state_->mutex);
  return state_->is_running;
}

}  // namespace atl::infer
