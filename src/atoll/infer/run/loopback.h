// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "atoll/infer/run/executor.h"

namespace atl::infer {

/// Both sides of one inference in one process: what one sends, the other receives. Used by two threads.
class Loopback {
 public:
  Exchange& robot() noexcept { return robot_; }
  Exchange& server() noexcept { return server_; }

  /// From now on, a receive of rows that have not been sent throws this error.
  void close(std::exception_ptr error);

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
    void send(int tensor, Region rows, HostBytes bytes) override;
    std::optional<HostBytes> receive(int tensor, Region rows, Deadline until) override;

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

}  // namespace atl::infer
