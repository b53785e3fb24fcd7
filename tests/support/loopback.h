// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "atoll/infer/run/executor.h"

namespace atl::infer::test {

/// Both sides of one inference in one process: what one sends, the other receives. Used by two threads.
class Loopback {
 public:
  Exchange& robot() noexcept { return robot_; }
  Exchange& server() noexcept { return server_; }

  /// From now on, a receive of rows that have not been sent throws this error.
  void close(std::exception_ptr error) {
    const std::lock_guard lock(link_.mutex);
    if (!link_.error) link_.error = std::move(error);
    link_.changed.notify_all();
  }

 private:
  struct Link {
    std::mutex mutex;
    std::condition_variable changed;
    std::exception_ptr error;
  };
  using Messages = std::map<std::tuple<int, std::int64_t, std::int64_t>, HostBytes>;  // by tensor, begin and end

  class End final : public Exchange {
   public:
    End(Link& link, Messages& to, Messages& from) : link_(link), to_(to), from_(from) {}

    void send(int tensor, Region rows, HostBytes bytes) override {
      const std::lock_guard lock(link_.mutex);
      to_[{tensor, rows.begin, rows.end}] = std::move(bytes);
      link_.changed.notify_all();
    }

    std::optional<HostBytes> receive(int tensor, Region rows, Deadline until) override {
      std::unique_lock lock(link_.mutex);
      for (;;) {
        const auto found = from_.find({tensor, rows.begin, rows.end});
        if (found != from_.end()) {
          HostBytes bytes = std::move(found->second);
          from_.erase(found);
          return bytes;
        }
        if (link_.error) std::rethrow_exception(link_.error);
        if (until.is_never()) {
          link_.changed.wait(lock);
        } else if (link_.changed.wait_until(lock, until.when()) == std::cv_status::timeout) {
          return std::nullopt;
        }
      }
    }

   private:
    Link& link_;
    Messages& to_;
    Messages& from_;
  };

  Link link_;
  Messages up_;
  Messages down_;
  End robot_{link_, up_, down_};
  End server_{link_, down_, up_};
};

}  // namespace atl::infer::test
