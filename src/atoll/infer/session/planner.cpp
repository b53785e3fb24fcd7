// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/session/planner.h"

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "atoll/core/log.h"
#include "atoll/infer/client/server_profile.h"

namespace atl::infer {
namespace {

constexpr std::size_t kMaxTold = 60;  // servers keep 64
constexpr double kLatencyChange = 0.002;
constexpr std::chrono::seconds kBetweenPlans{30};
// The pause before a server that has refused every plan is queried again.
constexpr std::chrono::seconds kMinPause{1};
constexpr std::chrono::seconds kMaxPause{60};

bool is_other(const plan::LinkCost& a, const plan::LinkCost& b) {
  const double proportion =
      a.down_bytes_per_second / a.up_bytes_per_second / (b.down_bytes_per_second / b.up_bytes_per_second);
  return proportion > 2 || proportion < 0.5 ||
         std::abs(a.latency - b.latency) > std::max(kLatencyChange, std::min(a.latency, b.latency));
}

}  // namespace

std::vector<bool> Planner::Offer::usable() const {
  std::vector<bool> usable;
  for (const auto& run : runs) usable.push_back(run != nullptr);
  return usable;
}

Planner::Planner(const Graph& graph, const Profile& robot, Options options, FrameSender& sender, LinkRates& rates,
                 std::function<void()> reconnect)
    : graph_(graph),
      robot_(robot),
      options_(std::move(options)),
      sender_(sender),
      rates_(rates),
      reconnect_(std::move(reconnect)),
      thread_([this] { plan_forever(); }) {}

Planner::~Planner() { stop(); }

void Planner::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Planner::on_ready(const wire::Ready& ready) {
  const std::lock_guard lock(mutex_);
  ++connections_;
  server_ = ready;
  server_device_ = ready.device;
  told_.clear();
  is_answered_late_ = false;
  offer_.reset();
  failure_.clear();
  ask_again_at_.reset();
  is_wanted_ = true;
  changed_.notify_all();
}

void Planner::on_lost() {
  const std::lock_guard lock(mutex_);
  server_.reset();
  offer_.reset();
  failure_.clear();
  ask_again_at_.reset();
  changed_.notify_all();
}

void Planner::on_divided(const wire::Divided& divided) {
  const std::lock_guard lock(mutex_);
  for (Told& told : told_) {
    if (told.number == divided.division) return take_answer(told, Answer::kDivided);
  }
}

void Planner::on_refused(const std::string& why) {
  log(LogLevel::kWarning, "infer: the server refused a division: " + why);
  const std::lock_guard lock(mutex_);
  for (Told& told : told_) {
    if (told.answer != Answer::kNone) continue;
    refused_ = why;
    return take_answer(told, Answer::kRefused);
  }
}

void Planner::take_answer(Told& told, Answer answer) {
  told.answer = answer;
  is_answered_late_ = is_answered_late_ || told.number != asked_;
  changed_.notify_all();
}

Planner::Answer Planner::answer_to(std::uint32_t number) const {
  const auto told = std::find_if(told_.begin(), told_.end(), [&](const Told& each) { return each.number == number; });
  return told == told_.end() ? Answer::kNone : told->answer;
}

std::shared_ptr<const Planner::Offer> Planner::offer() const {
  const std::lock_guard lock(mutex_);
  return offer_;
}

std::uint64_t Planner::connection() const {
  const std::lock_guard lock(mutex_);
  return server_ ? connections_ : 0;
}

bool Planner::wait(Deadline deadline) const {
  std::unique_lock lock(mutex_);
  const auto is_over = [this] { return is_stopping_ || !failure_.empty() || (offer_ && offer_->is_complete); };
  if (deadline.is_never()) {
    changed_.wait(lock, is_over);
  } else {
    changed_.wait_until(lock, deadline.when(), is_over);
  }
  return failure_.empty() && offer_ && offer_->is_complete;
}

std::string Planner::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Planner::fill(SessionReport& report) const {
  const std::lock_guard lock(mutex_);
  report.server = server_device_;
  report.planning = failure_;
  if (!offer_) return;
  for (const plan::OperatorPlan& each : offer_->prepared->table.plans) report.plans.push_back(each.policy);
}

void Planner::look_at_link() {
  const std::lock_guard lock(mutex_);
  if (is_wanted_ || !offer_ || !offer_->is_complete || Clock::now() - planned_at_ < kBetweenPlans) return;
  if (!is_other(rates_.link(), planned_for_)) return;
  is_wanted_ = true;
  changed_.notify_all();
}

void Planner::plan_forever() {
  pthread_setname_np(pthread_self(), "atoll-plans");
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto has_work = [this] { return is_stopping_ || is_wanted_ || is_answered_late_; };
    const auto until = ask_again_at_;
    until ? void(changed_.wait_until(lock, *until, has_work)) : changed_.wait(lock, has_work);
    if (is_stopping_) return;
    const bool is_late = std::exchange(is_answered_late_, false);
    const bool is_due = is_wanted_ || (ask_again_at_ && Clock::now() >= *ask_again_at_);
    if (!is_due && !is_late) continue;
    is_wanted_ = false;
    ask_again_at_.reset();
    if (!server_) continue;
    try {
      if (is_due) {
        make_plans(lock);
      } else if (const auto last = offer_) {
        tell(lock, last->prepared);
      }
    } catch (const std::exception& error) {  // of any type: inferences continue without a plan
      const std::string why = error.what();
      if (lock.owns_lock()) lock.unlock();
      log(LogLevel::kWarning, "infer: no plan can be made, so everything is computed here: " + why);
      lock.lock();
      if (is_wanted_) continue;  // for another connection
      failure_ = why;
      changed_.notify_all();
    }
  }
}

void Planner::make_plans(std::unique_lock<std::mutex>& lock) {
  const Profile server = profile_of(*server_);
  const std::uint64_t connection = connections_;
  const plan::LinkCost link = rates_.link();
  planned_for_ = link;
  planned_at_ = Clock::now();
  refused_.clear();  // and asked again
  std::erase_if(told_, [](const Told& told) { return told.answer == Answer::kRefused; });
  lock.unlock();
  const std::shared_ptr<const PreparedPlans> prepared = prepare_plans(graph_, robot_, server, link, options_.plans);
  lock.lock();
  if (server_ && connection == connections_) tell(lock, prepared);
}

void Planner::tell(std::unique_lock<std::mutex>& lock, const std::shared_ptr<const PreparedPlans>& prepared) {
  const std::uint64_t connection = connections_;
  const auto is_over = [&] { return is_stopping_ || !server_ || connection != connections_; };
  Offer offer;
  offer.prepared = prepared;
  offer.runs.resize(prepared->plans.size());
  offer.model = server_->model;
  offer.connection = connection;
  for (std::size_t i = 0; i < prepared->plans.size(); ++i) {
    if (!prepared->plans[i]) continue;
    const auto number = number_of(lock, prepared->plans[i]->plan);
    if (is_over()) return;
    if (!number) continue;
    offer.runs[i] = std::make_shared<SplitRun>(
        graph_, prepared, i, *number, sender_, [this] { return rates_.up_rate(); }, options_.lossy);
    publish(offer);
  }
  offer.is_complete = true;
  const auto is_null = [](const auto& run) { return run == nullptr; };
  failure_.clear();
  if (!refused_.empty() && std::all_of(offer.runs.begin(), offer.runs.end(), is_null)) {
    failure_ = "it refuses every division of the model: " + refused_;
    pause_ = std::clamp(2 * pause_, kMinPause, kMaxPause);
    ask_again_at_ = Clock::now() + pause_;
  } else {
    pause_ = {};
  }
  publish(offer);
  changed_.notify_all();
}

// The number by which the server knows the plan; none if it refuses the plan, or has not answered in time.
std::optional<std::uint32_t> Planner::number_of(std::unique_lock<std::mutex>& lock, const Plan& plan) {
  for (const Told& told : told_) {
    if (told.plan == plan) return told.answer == Answer::kDivided ? std::optional(told.number) : std::nullopt;
  }
  if (told_.size() >= kMaxTold) {
    lock.unlock();
    reconnect_();
    lock.lock();
    return std::nullopt;
  }
  const std::uint64_t connection = connections_;
  wire::Divide divide;
  divide.model = server_->model;
  divide.division = asked_ = ++last_number_;
  divide.plan = plan;
  // kJpeg is for inputs only, and answers are not inputs.
  divide.answer_codec = options_.lossy == wire::Codec::kJpeg ? wire::Codec::kRaw : options_.lossy;
  told_.push_back({divide.division, plan, Answer::kNone});
  lock.unlock();
  sender_.send(divide);
  lock.lock();
  const auto is_over = [&] { return is_stopping_ || !server_ || connection != connections_; };
  changed_.wait_for(lock, options_.answer_limit,
                    [&] { return is_over() || answer_to(divide.division) != Answer::kNone; });
  asked_ = 0;
  if (connection != connections_ || answer_to(divide.division) != Answer::kDivided) return std::nullopt;
  return divide.division;
}

}  // namespace atl::infer
