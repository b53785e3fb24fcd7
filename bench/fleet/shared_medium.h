// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace atl::plan::fleet {

/// A medium on which messages of several senders have equal parts of the time at any moment: processor sharing
/// (Kleinrock, "Time-shared systems: a theoretical treatment", 1967). Time must not decrease.
class SharedMedium {
 public:
  /// `airtime` is the share of the time that all messages have together.
  explicit SharedMedium(double airtime) : airtime_(airtime) {}

  /// Starts a message that would take `seconds` alone with all the time. It passes a mark when that much of it is left;
  /// marks descend, and the last one is 0.
  void start(std::size_t sender, double seconds, std::vector<double> marks, double now);

  /// Returns when the next mark is passed if no message starts before; infinite without messages.
  double next() const noexcept;

  struct Passed {
    std::size_t sender = 0;
    std::size_t mark = 0;
    bool is_last = false;
    double since = 0;  ///< when the message started
  };
  /// Returns the marks passed at `now`, which is at most next(). Messages that have passed their last mark are removed.
  std::vector<Passed> pass(double now);

 private:
  struct Message {
    std::size_t sender = 0;
    double left = 0;   // at `since`
    double since = 0;  // when the number of messages changed
    double started = 0;
    std::vector<double> marks{};
    std::size_t passed = 0;
  };
  double share() const noexcept { return airtime_ / static_cast<double>(messages_.size()); }
  double time_of_next(const Message& message) const noexcept;
  void catch_up(double now) noexcept;

  double airtime_;
  std::vector<Message> messages_;
};

}  // namespace atl::plan::fleet
