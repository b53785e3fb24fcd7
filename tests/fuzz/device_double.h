// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "atoll/collectives/messages/direct_messages.h"
#include "atoll/core/error.h"
#include "atoll/transport/direct.h"

// A device, and a network that supports it, whose operations end when the input says so.
namespace atl::fuzz {

/// Operations that have started and not ended, oldest first. Thread-safe.
class PendingOperations {
 public:
  using Run = std::function<void(const Error* problem)>;

  void add(const void* owner, Run run) {
    const std::lock_guard lock(mutex_);
    waiting_.emplace_back(owner, std::move(run));
  }

  /// Ends the oldest operation, if there is one: with `problem`, or successfully if it is nullptr.
  bool end_one(const Error* problem) {
    Run run;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) return false;
      run = std::move(waiting_.front().second);
      waiting_.pop_front();
    }
    run(problem);
    return true;
  }

  /// Aborts all operations of `owner`; nullptr: of every owner.
  void give_up(const void* owner) {
    const Error problem(ErrorKind::kAborted, "given up");
    for (Run run = take(owner); run; run = take(owner)) run(&problem);
  }

 private:
  Run take(const void* owner) {
    const std::lock_guard lock(mutex_);
    for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
      if (owner != nullptr && it->first != owner) continue;
      Run run = std::move(it->second);
      waiting_.erase(it);
      return run;
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::deque<std::pair<const void*, Run>> waiting_;
};

class PortDouble final : public transport::DirectPort {
 public:
  explicit PortDouble(PendingOperations& pending) : pending_(pending) {}
  bool reaches(transport::MemoryKind) const noexcept override { return true; }
  void send(std::uint64_t, const transport::DirectBuffer& from, Done done) override {
    pending_.add(this, [from, done = std::move(done)](const Error* problem) {
      const auto* const bytes = static_cast<const std::byte*>(from.data);
      if (problem == nullptr) static_cast<void>(std::vector<std::byte>(bytes, bytes + from.bytes));
      done(problem);
    });
  }
  void receive(std::uint64_t, const transport::DirectBuffer& to, Done done) override {
    pending_.add(this, [to, done = std::move(done)](const Error* problem) {
      if (problem == nullptr) std::memset(to.data, 1, to.bytes);
      done(problem);
    });
  }
  void remember(const transport::DirectBuffer&) override {}
  void forget(const transport::DirectBuffer&) override {}

 private:
  PendingOperations& pending_;
};

class DeviceDouble final : public collectives::MessageDevice {
 public:
  explicit DeviceDouble(PendingOperations& pending) : pending_(pending) {}
  bool is_reached(const transport::DirectPort&) const noexcept override { return true; }
  std::shared_ptr<transport::RingMemory> new_ring(const transport::DirectPort&, std::size_t bytes) override {
    return std::make_shared<Ring>(pending_, bytes);
  }

 private:
  struct Ring final : transport::RingMemory {
    Ring(PendingOperations& of, std::size_t size) : pending(of), memory(new std::byte[size]), bytes(size) {}
    transport::DirectBuffer buffer() const noexcept override {
      return {memory.get(), bytes, transport::MemoryKind::kHost};
    }
    void copy(void* to, const void* from, std::size_t count, Copied copied) override {
      pending.add(this, [to, from, count, copied = std::move(copied)](const Error* problem) {
        if (problem == nullptr) std::memcpy(to, from, count);
        copied(problem);
      });
      if (is_given_up) pending.give_up(this);
    }
    void give_up() noexcept override {
      is_given_up = true;
      pending.give_up(this);
    }

    PendingOperations& pending;
    const std::unique_ptr<std::byte[]> memory;
    const std::size_t bytes;
    std::atomic<bool> is_given_up{false};
  };

  PendingOperations& pending_;
};

/// A message's memory on the device, of its exact size.
class LandingDouble final : public collectives::Landing {
 public:
  LandingDouble(std::shared_ptr<collectives::MessageDevice> device, std::vector<std::byte>& memory)
      : device_(std::move(device)), memory_(memory) {}
  const std::shared_ptr<collectives::MessageDevice>& device() const noexcept override { return device_; }
  std::byte* on_device() override { return memory_.data(); }
  std::byte* on_host() override { return memory_.data(); }

 private:
  const std::shared_ptr<collectives::MessageDevice> device_;
  std::vector<std::byte>& memory_;
};

}  // namespace atl::fuzz
