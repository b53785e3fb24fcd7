// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "atoll/core/loop.h"
#include "atoll/transport/direct.h"
#include "atoll/transport/ucx/worker.h"

namespace atl::transport {

/// Direct messages of a UcxLink: UCX's tagged messages, each end with its kind of memory.
class UcxDirect final : public DirectPort {
 public:
  /// `drive` makes the link's worker progress, on the loop.
  UcxDirect(Loop& loop, std::function<void()> drive) : loop_(loop), drive_(std::move(drive)) {}

  bool reaches(MemoryKind kind) const noexcept override;
  void send(std::uint64_t number, const DirectBuffer& from, Done done) override;
  void receive(std::uint64_t number, const DirectBuffer& to, Done done) override;
  void remember(const DirectBuffer& memory) override;
  void forget(const DirectBuffer& memory) override;

  // For the link, on the loop.

  /// The link is up. Numbers are mixed with secrets of the two ends, so that no stranger's message matches one.
  void begin_on_loop(ucx::Worker& worker, std::shared_ptr<ucx::Context> context, std::uint64_t peer_secret,
                     std::uint64_t secret);
  /// The link has ended: call the first, end the worker, which ends some of the messages, then call the second for the
  /// rest.
  void end_on_loop(const Error& why);
  void end_rest_on_loop();

 private:
  struct Message final : ucx::Operation {
    void finish(const Error* problem, std::size_t bytes) override;
    UcxDirect* port = nullptr;
    DirectBuffer buffer;
    bool receives = false;
    Done done;
    std::list<Message>::iterator self;
  };

  void check(const DirectBuffer& buffer) const;
  void begin(std::uint64_t number, const DirectBuffer& buffer, bool receives, Done done);
  const ucx::Registration* registration_on_loop(const DirectBuffer& buffer) const;

  Loop& loop_;
  const std::function<void()> drive_;
  std::shared_ptr<ucx::Context> context_;  // constant once the link is up
  std::uint64_t peer_secret_ = 0;
  std::uint64_t secret_ = 0;

  // The loop's.
  ucx::Worker* worker_ = nullptr;  // nullptr: not up, or ended
  std::optional<Error> ended_;
  std::list<Message> under_way_;
  std::map<const void*, std::pair<std::size_t, std::unique_ptr<ucx::Registration>>> remembered_;
};

}  // namespace atl::transport
