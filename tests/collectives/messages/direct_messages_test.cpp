// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/messages/direct_messages.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "atoll/core/loop.h"
#include "tests/support/ranks.h"
#include "tests/support/values.h"
#include "tests/transport/ucx/support.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT
using transport::ChunkRing;
using transport::DirectBuffer;
using transport::DirectPort;
using transport::MemoryKind;
using transport::RingMemory;

/// A device whose memory only its own copies may touch, on a thread of its own; the test can stall it.
class Device final : public MessageDevice, public std::enable_shared_from_this<Device> {
 public:
  bool is_reached(const DirectPort&) const noexcept override { return is_known; }
  std::shared_ptr<RingMemory> new_ring(const DirectPort&, std::size_t bytes) override {
    if (is_full) throw Error(ErrorKind::kUnavailable, "the device is full");
    ++rings;
    return std::make_shared<Ring>(shared_from_this(), bytes);
  }

  void stand_still() { still_ = true; }
  void go_on() { still_ = false; }

  /// Returns when nothing is left to copy.
  void finish() {
    for (int i = 0; i < 100; ++i) loop_.run_and_wait([] {});
  }

  std::atomic<bool> is_known{true};
  std::atomic<bool> is_full{false};
  std::atomic<int> rings{0};
  std::atomic<int> copies{0};

 private:
  struct Ring final : RingMemory {
    Ring(std::shared_ptr<Device> of, std::size_t bytes) : device(std::move(of)), memory(bytes) {}
    DirectBuffer buffer() const noexcept override {
      return {const_cast<std::byte*>(memory.data()), memory.size(), MemoryKind::kHost};
    }
    void copy(void* to, const void* from, std::size_t bytes, Copied copied) override {
      device->loop_.post([this, to, from, bytes, copied] { try_copy(to, from, bytes, copied); });
    }
    void try_copy(void* to, const void* from, std::size_t bytes, const Copied& copied) {
      if (given_up) {
        const Error error(ErrorKind::kAborted, "given up");
        return copied(&error);
      }
      if (device->still_) {
        device->loop_.post([this, to, from, bytes, copied] { try_copy(to, from, bytes, copied); });
        return std::this_thread::yield();
      }
      std::memcpy(to, from, bytes);
      ++device->copies;
      copied(nullptr);
    }
    void give_up() noexcept override { given_up = true; }

    const std::shared_ptr<Device> device;
    std::vector<std::byte> memory;
    std::atomic<bool> given_up{false};
  };

  std::atomic<bool> still_{false};
  Loop loop_{"device"};
};

/// A message's memory on a device, and how the message arrived there.
struct Memory final : Landing {
  Memory(std::shared_ptr<Device> of, std::size_t bytes) : owner(std::move(of)), there(bytes), here(bytes) {}
  const std::shared_ptr<MessageDevice>& device() const noexcept override { return owner; }
  std::byte* on_device() override {
    ++direct;
    return there.data();
  }
  std::byte* on_host() override {
    ++staged;
    return here.data();
  }
  const std::vector<std::byte>& came() const { return staged != 0 ? here : there; }

  const std::shared_ptr<MessageDevice> owner;
  std::vector<std::byte> there, here;
  std::atomic<int> direct{0}, staged{0};
};

class DirectMessagesOver : public ::testing::TestWithParam<const char*> {
 protected:
  DirectMessagesOver() : ucx_(GetParam()) {}
  void SetUp() override {
    if (const std::string why = ucx_is_absent(); !why.empty()) GTEST_SKIP() << why;
  }

  static Ranks make(const std::string& letters, bool check_data = false,
                    transport::TransportChoice transport = transport::TransportChoice::kUcx) {
    RankOptions options;
    options.islands = layout(letters);
    options.transport = transport;
    options.check_data = check_data;
    return Ranks(options);
  }

  /// Sends from `device` if the link can, else from the host; the future holds the error or nothing.
  static std::future<void> send(Group& group, int to, std::uint64_t tag, const std::vector<std::byte>& data,
                                const std::shared_ptr<Device>& device) {
    auto done = std::make_shared<std::promise<void>>();
    auto future = done->get_future();
    auto* const port = device ? group.direct_port(to, data.size()) : nullptr;
    const bool direct = port != nullptr && device->is_reached(*port);
    group.send(to, tag, DataType::kUInt8, data, {},
               [done](const std::exception_ptr& e) { e ? done->set_exception(e) : done->set_value(); },
               {direct ? device : nullptr, nullptr});
    return future;
  }

  static std::future<int> receive(Group& group, int from, std::uint64_t tag, const std::shared_ptr<Memory>& memory) {
    auto done = std::make_shared<std::promise<int>>();
    auto future = done->get_future();
    group.receive(
        from, tag, DataType::kUInt8, memory->there.size(), memory, {},
        [done](const std::exception_ptr& e, int source) { e ? done->set_exception(e) : done->set_value(source); });
    return future;
  }

 private:
  const UcxTransports ucx_;
};

INSTANTIATE_TEST_SUITE_P(Ucx, DirectMessagesOver, ::testing::Values(kUcxMemory, kUcxNetwork), [](const auto& each) {
  return each.param == std::string(kUcxNetwork) ? "Network" : "Memory";
});

// A little over 64 KiB; more than a ring; and a size that is not worth a ring.
constexpr std::size_t kMessageSizes[] = {0, 1, 16384, 16385, 65537, 1 << 20, (1 << 20) + 1, 9'000'001};

TEST_P(DirectMessagesOver, EverySizeArrivesFromDeviceToDevice) {
  auto ranks = make("AB");
  ranks.run_ok([](Group& group) {
    group.barrier();
    const int other = 1 - group.rank();
    const auto device = std::make_shared<Device>();
    for (const std::size_t bytes : kMessageSizes) {
      const auto out = random_bytes(bytes, group.rank());
      const auto in = std::make_shared<Memory>(device, bytes);
      auto sent = send(group, other, 7, out, device);
      EXPECT_EQ(receive(group, other, 7, in).get(), other);
      sent.get();
      EXPECT_EQ(in->came(), random_bytes(bytes, other)) << bytes;
      EXPECT_EQ(in->direct, bytes > 16384 ? 1 : 0) << bytes;
    }
    EXPECT_EQ(device->rings, 2);
    EXPECT_GT(device->copies, 0);
  });
}

// Each end may be a device or the host, whatever the other one is, or a device that the network does not support.
TEST_P(DirectMessagesOver, TheTwoEndsDiffer) {
  auto ranks = make("AB");
  ranks.run_ok([](Group& group) {
    group.barrier();
    const auto device = std::make_shared<Device>();
    for (int mix = 0; mix < 8; ++mix) {
      SCOPED_TRACE(mix);
      const bool from_device = mix & 1;
      const bool to_device = mix & 2;
      device->is_known = (mix & 4) == 0;
      const auto data = random_bytes(2'500'000, mix);
      if (group.rank() == 0) {
        send(group, 1, 1, data, from_device ? device : nullptr).get();
      } else if (to_device) {
        const auto in = std::make_shared<Memory>(device, data.size());
        receive(group, 0, 1, in).get();
        EXPECT_EQ(in->came(), data);
        EXPECT_EQ(in->direct, from_device && device->is_known ? 1 : 0);
      } else {
        std::vector<std::byte> in(data.size());
        std::promise<void> done;
        group.receive(0, 1, DataType::kUInt8, in, {},
                      [&](const std::exception_ptr& e, int) { e ? done.set_exception(e) : done.set_value(); });
        done.get_future().get();
        EXPECT_EQ(in, data);
      }
    }
  });
}

TEST_P(DirectMessagesOver, ManyMessagesInAnyOrder) {
  for (int seed = 0; seed < 5; ++seed) {
    auto ranks = make("ABC");
    ranks.run_ok([seed](Group& group) {
      group.barrier();
      const auto device = std::make_shared<Device>();
      struct Message {
        std::vector<std::byte> out;
        std::shared_ptr<Memory> in;
      };
      std::map<std::pair<int, int>, Message> messages;  // by peer and tag
      std::vector<std::future<void>> sent;
      std::vector<std::function<void()>> calls;
      std::vector<std::future<int>> got;
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == group.rank()) continue;
        for (int tag = 0; tag < 8; ++tag) {
          auto& message = messages[{peer, tag}];
          const std::size_t bytes =
              std::mt19937(static_cast<unsigned>(tag + seed))() % (tag % 2 == 0 ? 40000 : 6000000);
          message.out = random_bytes(bytes, group.rank() * 100 + peer * 10 + tag);
          message.in = std::make_shared<Memory>(device, bytes);
          calls.emplace_back([&, peer, tag] {
            sent.push_back(
                send(group, peer, static_cast<std::uint64_t>(tag), message.out, tag % 3 == 0 ? nullptr : device));
          });
          calls.emplace_back(
              [&, peer, tag] { got.push_back(receive(group, peer, static_cast<std::uint64_t>(tag), message.in)); });
        }
      }
      std::shuffle(calls.begin(), calls.end(), std::mt19937(static_cast<unsigned>(seed * 3 + group.rank())));
      for (const auto& call : calls) call();
      for (auto& each : sent) each.get();
      for (auto& each : got) each.get();
      for (auto& [where, message] : messages) {
        EXPECT_EQ(message.in->came(),
                  random_bytes(message.out.size(), where.first * 100 + group.rank() * 10 + where.second));
      }
    });
  }
}

// A rank may leave right after sending: its message arrives.
TEST_P(DirectMessagesOver, ARankLeavesBehindItsLastMessage) {
  for (int round = 0; round < 10; ++round) {
    auto ranks = make("AB");
    const auto data = random_bytes(3'000'000, round);
    ranks.run_ok([&](Group& group) {
      group.barrier();
      const auto device = std::make_shared<Device>();
      if (group.rank() == 0) {
        send(group, 1, 1, data, device).get();
      } else {
        const auto in = std::make_shared<Memory>(device, data.size());
        receive(group, 0, 1, in).get();
        EXPECT_EQ(in->there, data);
      }
      group.shutdown();
    });
  }
}

// If a device is stalled, an abort ends the message on both sides, and nothing touches its memory afterwards.
TEST_P(DirectMessagesOver, AnAbortDoesNotWaitForTheDevice) {
  for (const bool sender_stands : {true, false}) {
    auto ranks = make("AB");
    const auto errors = ranks.run([&](Group& group) {
      group.barrier();
      const auto device = std::make_shared<Device>();
      const bool sends = group.rank() == 0;
      if (sends == sender_stands) device->stand_still();
      const auto data = random_bytes(9'000'000, 1);
      const auto in = std::make_shared<Memory>(device, data.size());
      try {
        if (!sends) receive(group, 0, 1, in).get();
        if (!sends) return;
        auto sent = send(group, 1, 1, data, device);
        group.abort("enough");
        sent.get();
      } catch (...) {
        const int copies = device->copies;
        device->go_on();
        device->finish();
        EXPECT_EQ(device->copies, copies) << "something copied after the message had ended";
        throw;
      }
    });
    for (const auto& error : errors) EXPECT_NE(error.find("enough"), std::string::npos) << error;
  }
}

TEST_P(DirectMessagesOver, AKilledRankEndsMessagesUnderWay) {
  auto ranks = make("AB");
  const auto device = std::make_shared<Device>();
  const auto data = random_bytes(9'000'000, 1);
  ranks.run_ok([](Group& group) { group.barrier(); });
  device->stand_still();
  const auto in = std::make_shared<Memory>(device, data.size());
  auto got = receive(ranks.group(0), 1, 1, in);
  auto sent = send(ranks.group(1), 0, 1, data, std::make_shared<Device>());
  while (in->direct == 0) std::this_thread::yield();
  ranks.kill(1);
  EXPECT_THROW(got.get(), Error);
  EXPECT_THROW(sent.get(), Error);
  device->go_on();
}

TEST_P(DirectMessagesOver, ADeviceWithoutMemoryIsAnErrorThatSaysSo) {
  auto ranks = make("AB");
  const auto errors = ranks.run([](Group& group) {
    group.barrier();
    const auto device = std::make_shared<Device>();
    const auto data = random_bytes(100'000, 1);
    if (group.rank() == 0) return send(group, 1, 1, data, device).get();
    device->is_full = true;
    receive(group, 0, 1, std::make_shared<Memory>(device, data.size())).get();
  });
  EXPECT_NE(errors[1].find("the device is full"), std::string::npos) << errors[1];
  EXPECT_NE(errors[0].find("the device is full"), std::string::npos) << errors[0];
}

TEST_P(DirectMessagesOver, WhatIsCheckedOrOnOtherLinksPassesTheHost) {
  for (const bool check_data : {true, false}) {
    auto ranks =
        make("AB", check_data, check_data ? transport::TransportChoice::kUcx : transport::TransportChoice::kTcp);
    ranks.run_ok([](Group& group) {
      group.barrier();
      const int other = 1 - group.rank();
      EXPECT_EQ(group.direct_port(other, 1 << 20), nullptr);
      const auto device = std::make_shared<Device>();
      const auto in = std::make_shared<Memory>(device, 100'000);
      const auto data = random_bytes(100'000, group.rank());
      auto sent = send(group, other, 1, data, device);
      receive(group, other, 1, in).get();
      sent.get();
      EXPECT_EQ(in->staged, 1);
      EXPECT_EQ(in->here, random_bytes(100'000, other));
    });
  }
}

}  // namespace
}  // namespace atl::test
