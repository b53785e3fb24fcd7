// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/device/stream.h"

#include <pthread.h>

#include <algorithm>

namespace atl::sim {
namespace {

using std::chrono::nanoseconds;

constexpr nanoseconds kStep{200'000};      // between two calls of a task whose share grows
constexpr nanoseconds kPunctual{500'000};  // a sleeping thread may wake up this late

}  // namespace

void Event::wait() const {
  Clock::time_point finish;
  {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [this] { return state_->passed; });
    finish = state_->finish;
  }
  std::this_thread::sleep_until(finish);
}

void Event::pass(Clock::time_point at) const {
  const std::lock_guard lock(state_->mutex);
  state_->passed = true;
  state_->finish = at;
  state_->changed.notify_all();
}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Stream::note(Clock::time_point modelled) {
  punctuality_.tasks.fetch_add(1, std::memory_order_relaxed);
  if (Clock::now() > modelled + kPunctual) punctuality_.late.fetch_add(1, std::memory_order_relaxed);
}

void Stream::run(const std::function<nanoseconds()>& work) {
  const auto issued = Clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty(); });
  run_locked(work, issued);
}

void Stream::run_or_enqueue(std::function<void()> work, nanoseconds duration) {
  const auto issued = Clock::now();
  const std::lock_guard lock(mutex_);
  const auto timed = [&] {
    work();
    return duration;
  };
  if (queue_.empty()) return run_locked(timed, issued);
  const auto at_the_beginning = [work = std::move(work), duration](Clock::time_point begin) {
    work();
    return begin + duration;
  };
  push({Task::Kind::kOpen, {}, {}, {}, at_the_beginning, duration.count() > 0});
}

void Stream::run_locked(const std::function<nanoseconds()>& work, Clock::time_point issued) {
  const nanoseconds duration = work();
  finish_ = std::max(finish_, issued) + duration;
  if (duration.count() > 0) note(finish_);
  // Work that took longer than modelled ends when it really ended.
  finish_ = std::max(finish_, duration.count() > 0 ? Clock::now() : finish_);
}

void Stream::push(Task task) {
  queue_.push_back(std::move(task));
  changed_.notify_all();
  if (thread_.joinable()) return;
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "atoll-sim");
    serve();
  });
}

void Stream::enqueue(std::function<void(double)> work, nanoseconds duration) {
  const std::lock_guard lock(mutex_);
  push({Task::Kind::kWork, std::move(work), duration, {}, {}});
}

void Stream::enqueue_open(std::function<Clock::time_point(Clock::time_point)> work, bool is_modelled) {
  const std::lock_guard lock(mutex_);
  push({Task::Kind::kOpen, {}, {}, {}, std::move(work), is_modelled});
}

Event Stream::record() {
  Event event;
  const std::lock_guard lock(mutex_);
  if (queue_.empty()) {
    event.pass(std::max(finish_, Clock::now()));
    return event;
  }
  event.state_->passed = false;
  push({Task::Kind::kPass, {}, {}, event, {}});
  return event;
}

void Stream::wait_for(const Event& event) {
  if (event.is_reached()) return;
  const std::lock_guard lock(mutex_);
  push({Task::Kind::kWait, {}, {}, event, {}});
}

bool Stream::is_idle() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && Clock::now() >= finish_;
}

void Stream::synchronize() { record().wait(); }

void Stream::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Task task = std::move(queue_.front());  // its place stays taken until it is done, for run() and record()
    const auto begin = std::max(finish_, task.issued);
    lock.unlock();
    const auto finish = finish_of(task, begin);
    task.work = nullptr;  // destroying what they held may use this stream
    task.open = nullptr;
    lock.lock();
    finish_ = finish;
    queue_.pop_front();
    changed_.notify_all();
    if (task.kind == Task::Kind::kPass)
      task.event.pass(finish);  // after the pop, so that a thread that waits for it finds the stream idle
  }
}

Clock::time_point Stream::finish_of(const Task& task, Clock::time_point begin) {
  switch (task.kind) {
    case Task::Kind::kPass: return begin;
    case Task::Kind::kWait: task.event.wait(); return std::max(begin, task.event.when());
    case Task::Kind::kOpen: {
      std::this_thread::sleep_until(begin);
      const auto modelled = task.open(begin);
      if (task.is_modelled) note(modelled);
      const auto end = std::max(modelled, Clock::now());  // as in run_locked()
      std::this_thread::sleep_until(end);
      return end;
    }
    case Task::Kind::kWork: break;
  }
  const auto end = begin + task.duration;
  for (auto at = begin + kStep; at < end; at += kStep) {
    std::this_thread::sleep_until(at);
    task.work(static_cast<double>((at - begin).count()) / static_cast<double>(task.duration.count()));
  }
  std::this_thread::sleep_until(end);
  task.work(1.0);
  if (task.duration.count() > 0) note(end);
  return end;
}

}  // namespace atl::sim
