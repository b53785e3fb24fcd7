// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/in_flight.h"

#include <algorithm>
#include <string>

namespace atl::infer {
namespace {

constexpr std::chrono::milliseconds kEndPollPeriod{5};
constexpr double kMaxServerWait = 0.02;  // seconds
constexpr double kMaxPatience = 1e9;

// `unended`: seconds since the last inference started.
Clock::duration end_wait(const AttemptRules& rules, double local, double unended) {
  double seconds = rules.deadline - unended;
  if (rules.hedge != Hedge::kNever) {
    const double left = rules.deadline - rules.margin - local - seconds_since(rules.begin);
    seconds = std::min({left, local / 4, kMaxServerWait});
  }
  const std::chrono::duration<double> wait(std::clamp(seconds, 0.0, kMaxPatience));
  return std::chrono::duration_cast<Clock::duration>(wait);
}

}  // namespace

std::uint64_t InFlight::begin(const std::shared_ptr<SplitRun>& run, const std::function<bool()>& is_connected) {
  const std::lock_guard lock(mutex_);
  if (!is_connected()) return 0;
  ++last_;
  run->arrivals().begin(last_);
  run->exchange().begin(last_);
  run_ = run;
  unended_ = last_;
  started_ = Clock::now();
  down_bytes_ = 0;
  return last_;
}

void InFlight::over() {
  const std::lock_guard lock(mutex_);
  run_.reset();
}

bool InFlight::wait_for_end(const AttemptRules& rules, double local) {
  std::unique_lock lock(mutex_);
  const Deadline limit = Deadline::after(end_wait(rules, local, seconds_since(started_)));
  while (unended_ != 0 && !limit.expired()) {
    lock.unlock();  // the caller's check may use the session
    if (rules.is_over()) TurnGate::refuse();
    lock.lock();
    ended_.wait_until(lock, std::min(limit.when(), Clock::now() + kEndPollPeriod), [this] { return unended_ == 0; });
  }
  return unended_ == 0;
}

std::uint64_t InFlight::down_bytes() const {
  const std::lock_guard lock(mutex_);
  return down_bytes_;
}

wire::Done InFlight::last_done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void InFlight::done(const wire::Done& done) {
  const std::lock_guard lock(mutex_);
  done_ = done;
  if (done.inference != unended_) return;
  unended_ = 0;
  ended_.notify_all();
}

void InFlight::failed(std::uint64_t inference, const Error& error) {
  const std::lock_guard lock(mutex_);
  if (inference != unended_) return;
  unended_ = 0;
  ended_.notify_all();
  if (run_) run_->arrivals().fail(error);
}

void InFlight::lost(const Error& error) {
  const std::lock_guard lock(mutex_);
  unended_ = 0;
  ended_.notify_all();
  if (run_) run_->arrivals().fail(error);
}

std::optional<wire::Ack> InFlight::take(const wire::FrameHeader& header, std::span<const std::byte> payload) {
  const std::lock_guard lock(mutex_);
  if (header.id > last_) {
    throw Error(ErrorKind::kProtocol,
                "it sent rows of inference " + std::to_string(header.id) + ", which has not started");
  }
  if (!run_ || header.id < last_) return std::nullopt;
  down_bytes_ += payload.size();
  return run_->arrivals().take(header, payload);
}

}  // namespace atl::infer
