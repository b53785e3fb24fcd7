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

// A device, and a network that knows it, whose work is done when the bytes say so.
namespace atl::fuzz {

/// What was begun and has not ended, oldest first. Thread-safe.
class Errands {
 public:
  using Run = std::function<void(const Error* problem)>;

  void add(const void* owner, Run run) {
    const std::lock_guard lock(mutex_);
    waiting_.emplace_back(owner, std::move(run));
  }

  /// The oldest one ends, if there is one: with `problem`, or well.
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

  /// All of `owner`'s end; nullptr: everybody's.
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
  explicit PortDouble(Errands& errands) : errands_(errands) {}
  bool reaches(transport::MemoryKind) const noexcept override { return true; }
  void send(std::uint64_t, const transport::DirectBuffer& from, Done done) override {
    errands_.add(this, [from, done = std::move(done)](const Error* problem) {
      const auto* const bytes = static_cast<const std::byte*>(from.data);
      if (problem == nullptr) static_cast<void>(std::vector<std::byte>(bytes, bytes + from.bytes));
      done(problem);
    });
  }
  void receive(std::uint64_t, const transport::DirectBuffer& to, Done done) override {
    errands_.add(this, [to, done = std::move(done)](const Error* problem) {
      if (problem == nullptr) std::memset(to.data, 1, to.bytes);
      done(problem);
    });
  }
  void remember(const transport::DirectBuffer&) override {}
  void forget(const transport::DirectBuffer&) override {}

 private:
  Errands& errands_;
};

class DeviceDouble final : public collectives::MessageDevice {
 public:
  explicit DeviceDouble(Errands& errands) : errands_(errands) {}
  bool is_reached(const transport::DirectPort&) const noexcept override { return true; }
  std::shared_ptr<transport::RingMemory> new_ring(const transport::DirectPort&, std::size_t bytes) override {
    return std::make_shared<Ring>(errands_, bytes);
  }

 private:
  struct Ring final : transport::RingMemory {
    Ring(Errands& of, std::size_t size) : errands(of), memory(new std::byte[size]), bytes(size) {}
    transport::DirectBuffer buffer() const noexcept override {
      return {memory.get(), bytes, transport::MemoryKind::kHost};
    }
    void copy(void* to, const void* from, std::size_t count, Copied copied) override {
      errands.add(this, [to, from, count, copied = std::move(copied)](const Error* problem) {
        if (problem == nullptr) std::memcpy(to, from, count);
        copied(problem);
      });
      if (is_given_up) errands.give_up(this);
    }
    void give_up() noexcept override {
      is_given_up = true;
      errands.give_up(this);
    }

    Errands& errands;
    const std::unique_ptr<std::byte[]> memory;
    const std::size_t bytes;
    std::atomic<bool> is_given_up{false};
  };

  Errands& errands_;
};

/// A message's memory there, of its exact size.
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
