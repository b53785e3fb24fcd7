// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/staging/abortable_waiter.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "atoll/core/error.h"
#include "atoll/pytorch/staging/future_of.h"

namespace atl::pytorch {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

}  // namespace

struct AbortableWaiter::State : std::enable_shared_from_this<AbortableWaiter::State> {
  struct Task {
    WorkPtr work;
    std::chrono::milliseconds timeout;
    std::exception_ptr error;
    bool is_done = false;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::condition_variable posted;  // a task
  std::deque<std::shared_ptr<Task>> tasks;
  std::size_t idle_threads = 0;
  bool is_aborted = false;
  bool is_closed = false;

  void check() const {
    if (is_aborted)
      throw Error(ErrorKind::kAborted, "the library was aborted while one of its operations was under way");
  }

  // Returns when the future is complete or the time is over; the work itself reports its timeout.
  void wait_for(const FuturePtr& future, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex);
    const auto over = [&] { return is_aborted || future->completed(); };
    if (timeout <= kNoTimeout) {
      changed.wait(lock, over);
    } else {
      changed.wait_for(lock, timeout, over);
    }
    if (!future->completed()) check();
  }

  // Called with the lock held. Returns whether the system could start a thread.
  bool start_thread() {
    try {
      std::thread([self = shared_from_this()] {
        pthread_setname_np(pthread_self(), "atoll-inner");
        self->serve();
      }).detach();
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      ++idle_threads;
      posted.wait(lock, [&] { return is_closed || !tasks.empty(); });
      --idle_threads;
      if (tasks.empty()) return;
      const auto task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      try {
        task->work->wait(task->timeout);
      } catch (...) {
        task->error = std::current_exception();
      }
      task->work.reset();
      lock.lock();
      task->is_done = true;
      changed.notify_all();
    }
  }

  void wait_on_thread(const WorkPtr& work, std::chrono::milliseconds timeout) {
    const auto task = std::make_shared<Task>(Task{work, timeout, nullptr, false});
    std::unique_lock lock(mutex);
    check();
    if (idle_threads <= tasks.size() && !start_thread()) {
      lock.unlock();
      work->wait(timeout);
      return;
    }
    tasks.push_back(task);
    posted.notify_one();
    changed.wait(lock, [&] { return is_aborted || task->is_done; });
    if (!task->is_done) check();
    if (task->error) std::rethrow_exception(task->error);
  }
};

AbortableWaiter::AbortableWaiter() : state_(std::make_shared<State>()) {}

AbortableWaiter::~AbortableWaiter() {
  const std::lock_guard lock(state_->mutex);
  state_->is_closed = true;
  state_->posted.notify_all();
}

void AbortableWaiter::wait(const WorkPtr& work, std::chrono::milliseconds timeout) {
  const FuturePtr future = future_of(*work);
  if (!future) return state_->wait_on_thread(work, timeout);
  if (future->completed()) {
    work->wait(timeout);
    return;
  }
  future->addCallback(
      [weak = std::weak_ptr<State>(state_)](c10::ivalue::Future&) {
        const auto state = weak.lock();
        if (!state) return;
        const std::lock_guard lock(state->mutex);
        state->changed.notify_all();
      },
      /*uses_future=*/false);
  state_->wait_for(future, timeout);
  work->wait(future->completed() ? kNoTimeout : std::chrono::milliseconds(1));
}

void AbortableWaiter::abort() noexcept {
  const std::lock_guard lock(state_->mutex);
  state_->is_aborted = true;
  state_->changed.notify_all();
}

}  // namespace atl::pytorch
