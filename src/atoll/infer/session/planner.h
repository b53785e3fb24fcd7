// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/infer/client/link_rates.h"
#include "atoll/infer/session/attempt.h"
#include "atoll/infer/session/prepared_plans.h"
#include "atoll/infer/session/report.h"

namespace atl::infer {

/// Makes the plans of a session and tells them to its server, on a thread of its own, when the server gets ready, and
/// when the link has changed for some time. An inference takes what is available and does not wait.
class Planner {
 public:
  /// The plans that the server can run.
  struct Offer {
    std::shared_ptr<const PreparedPlans> prepared;
    std::vector<std::shared_ptr<SplitRun>> runs;  ///< by plan; null if the server cannot run it
    std::uint64_t model = 0;
    std::uint64_t connection = 0;
    bool is_complete = false;  ///< no more plans will be added
    std::vector<bool> usable() const;
  };

  struct Options {
    PlanOptions plans;
    wire::Codec lossy = wire::Codec::kRaw;
    /// The time that the thread waits for the reply to one plan. A later reply is used when it arrives.
    std::chrono::milliseconds answer_limit{5000};
  };

  /// `reconnect` is called, on the thread, when the server holds more plans than it should. Borrows everything but
  /// the options.
  Planner(const Graph& graph, const Profile& robot, Options options, FrameSender& sender, LinkRates& rates,
          std::function<void()> reconnect);
  ~Planner();

  void on_ready(const wire::Ready& ready);
  void on_lost();
  void on_divided(const wire::Divided& divided);
  /// The server refused the oldest plan that it has not answered.
  void on_refused(const std::string& why);

  /// Null if there is no server.
  std::shared_ptr<const Offer> offer() const;
  /// The number of the connection whose server is ready; 0: none.
  std::uint64_t connection() const;
  /// Waits until the deadline for a complete offer; returns whether there is one. Returns false at once if no plan can
  /// be used.
  bool wait(Deadline deadline) const;
  /// Why no plan can be used: none can be made, or the server refuses them all. Empty if one can, or before the first
  /// try.
  std::string failure() const;
  /// Sets the server's device, the plans and the failure.
  void fill(SessionReport& report) const;
  /// Makes new plans if the link differs from the one they were made for.
  void look_at_link();
  /// Ends the thread; sends nothing afterwards.
  void stop();

 private:
  enum class Answer { kNone, kDivided, kRefused };
  // A plan that was sent on this connection.
  struct Told {
    std::uint32_t number = 0;
    Plan plan;
    Answer answer = Answer::kNone;
  };

  void plan_forever();
  void make_plans(std::unique_lock<std::mutex>& lock);
  void tell(std::unique_lock<std::mutex>& lock, const std::shared_ptr<const PreparedPlans>& prepared);
  std::optional<std::uint32_t> number_of(std::unique_lock<std::mutex>& lock, const Plan& plan);
  Answer answer_to(std::uint32_t number) const;
  void take_answer(Told& told, Answer answer);
  void publish(const Offer& offer) { offer_ = std::make_shared<const Offer>(offer); }

  const Graph& graph_;
  const Profile& robot_;
  const Options options_;
  FrameSender& sender_;
  LinkRates& rates_;
  const std::function<void()> reconnect_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool is_stopping_ = false;
  bool is_wanted_ = false;
  bool is_answered_late_ = false;  // the offer lacks a plan whose answer has come since
  std::uint64_t connections_ = 0;
  std::optional<wire::Ready> server_;  // while it is ready
  std::string server_device_;
  std::string failure_;
  std::string refused_;                            // why one of the last plans was
  std::optional<Clock::time_point> ask_again_at_;  // set if all were refused
  std::chrono::seconds pause_{};
  std::shared_ptr<const Offer> offer_;
  std::vector<Told> told_;
  std::uint32_t last_number_ = 0;
  std::uint32_t asked_ = 0;  // the plan whose answer is waited for; 0: none
  plan::LinkCost planned_for_;
  Clock::time_point planned_at_{};
  std::thread thread_;
};

}  // namespace atl::infer
