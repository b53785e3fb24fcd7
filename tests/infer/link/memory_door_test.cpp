// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/link/memory_door.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/transport/shared_memory.h"

namespace atl::infer {
namespace {

constexpr std::chrono::seconds kSoon{60};

class MemoryDoorTest : public testing::Test {
 protected:
  MemoryDoorTest() {
    loop_.run_and_wait([&] { door_ = std::make_unique<MemoryDoor>(loop_); });
  }
  ~MemoryDoorTest() override {
    loop_.run_and_wait([&] {
      fetch_.reset();
      door_.reset();
    });
  }

  Ticket offer() {
    Ticket ticket{};
    loop_.run_and_wait([&] {
      ticket =
          door_->offer({transport::duplicate(sends_.memory()), sends_.head(), transport::duplicate(gets_.memory())});
    });
    return ticket;
  }
  // What arrives at a door of this name; null: nothing was given.
  std::shared_ptr<PayloadEnds> fetch(const DoorName& name, const Ticket& ticket) {
    const auto fetched = std::make_shared<std::promise<std::shared_ptr<PayloadEnds>>>();
    std::future<std::shared_ptr<PayloadEnds>> answer = fetched->get_future();
    loop_.run_and_wait([&] {
      fetch_ =
          std::make_unique<MemoryFetch>(loop_, name, ticket, [fetched](const auto& ends) { fetched->set_value(ends); });
    });
    if (answer.wait_for(kSoon) != std::future_status::ready) throw Error(ErrorKind::kTimeout, "no answer");
    return answer.get();
  }

  Loop loop_{"door-test"};
  PayloadWriter sends_;
  PayloadWriter gets_;
  std::unique_ptr<MemoryDoor> door_;
  std::unique_ptr<MemoryFetch> fetch_;
};

TEST_F(MemoryDoorTest, TheTicketFetchesBothMemoriesOnce) {
  const std::vector<std::byte> before(5'000, std::byte{1});
  const std::vector<std::byte> up(6'000, std::byte{2});
  const std::vector<std::byte> down(7'000, std::byte{3});
  const auto early = sends_.put(before);
  const Ticket ticket = offer();
  const std::shared_ptr<PayloadEnds> ends = fetch(door_->name(), ticket);
  ASSERT_TRUE(ends);
  const auto sent = ends->out.put(up);
  const auto answered = gets_.put(down);
  ASSERT_TRUE(sent && answered);
  const PayloadReader reader(sends_.memory());
  EXPECT_TRUE(std::ranges::equal(reader.at(*early), before));
  EXPECT_TRUE(std::ranges::equal(reader.at(*sent), up));
  EXPECT_TRUE(std::ranges::equal(ends->in.at(*answered), down));
  EXPECT_EQ(fetch(door_->name(), ticket), nullptr);
}

TEST_F(MemoryDoorTest, AWrongOrWithdrawnTicketGetsNothing) {
  Ticket ticket = offer();
  ticket[3] ^= std::byte{1};
  EXPECT_EQ(fetch(door_->name(), ticket), nullptr);
  ticket[3] ^= std::byte{1};
  loop_.run_and_wait([&] { door_->withdraw(ticket); });
  EXPECT_EQ(fetch(door_->name(), ticket), nullptr);
  EXPECT_NE(fetch(door_->name(), offer()), nullptr);
}

TEST_F(MemoryDoorTest, AtADoorThatIsNotHereNothingHappens) {
  DoorName elsewhere = door_->name();
  elsewhere[0] ^= std::byte{1};
  std::atomic<bool> is_called{false};
  const Ticket ticket = offer();
  loop_.run_and_wait([&] {
    fetch_ = std::make_unique<MemoryFetch>(loop_, elsewhere, ticket, [&](const auto&) { is_called = true; });
  });
  EXPECT_NE(fetch(door_->name(), ticket), nullptr);  // afterwards, on the same loop
  EXPECT_FALSE(is_called);
}

TEST_F(MemoryDoorTest, AVisitorWithoutATicketIsTurnedAwayInTheEnd) {
  static_cast<void>(offer());
  const Fd visitor = transport::open_socket(AF_UNIX);
  ASSERT_EQ(transport::start_connecting(visitor.get(), address_of(door_->name())), 0);
  std::byte byte{};
  const Deadline limit = Deadline::after(kSoon);
  const auto is_closed = [&] { return ::recv(visitor.get(), &byte, 1, MSG_DONTWAIT) == 0; };
  loop_.run_and_wait([&] { door_->on_tick(Clock::now()); });
  EXPECT_FALSE(is_closed());
  while (!is_closed() && !limit.expired()) {
    loop_.run_and_wait([&] { door_->on_tick(Clock::now() + std::chrono::minutes(1)); });
  }
  EXPECT_FALSE(limit.expired());
  EXPECT_NE(fetch(door_->name(), offer()), nullptr);
}

}  // namespace
}  // namespace atl::infer
