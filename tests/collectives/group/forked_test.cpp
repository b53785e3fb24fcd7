// SPDX-License-Identifier: Apache-2.0
// A forked child does nothing with the groups it inherited, to any process; and dumps work while other things go on.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <functional>
#include <future>
#include <latch>
#include <thread>

#include "atoll/collectives/group/context_impl.h"
#include "atoll/collectives/group/group.h"
#include "tests/support/memory_store.h"

namespace atl::test {
namespace {

using namespace collectives;  // NOLINT

transport::EndpointOptions endpoint_options() {
  transport::EndpointOptions options;
  options.job = "test";
  options.advertised_address = "127.0.0.1";
  return options;
}

/// Runs `body` in a forked child and expects it to return true there.
void expect_in_child(const std::function<bool()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "wait status " << status;
}

TEST(Forked, ASignalForDumpsWritesIntoNoFileOfTheChild) {
  const Context context(endpoint_options());
  expect_in_child([] {
    // It reuses every descriptor number that was the parent's.
    const int file = ::memfd_create("file", MFD_CLOEXEC);
    for (int i = 0; i < 128; ++i) {
      if (::dup(file) < 0) return false;
    }
    struct stat status {};
    return ::raise(SIGUSR1) == 0 && ::fstat(file, &status) == 0 && status.st_size == 0;
  });
}

TEST(Forked, GroupsAndContextsMayBeDestroyedInTheChild) {
  MemoryStore store;
  std::array<std::shared_ptr<Context>, 2> contexts;
  std::array<std::unique_ptr<Group>, 2> groups;
  auto alone = std::make_unique<Context>(endpoint_options());
  const auto on_both = [&](const std::function<void(std::size_t)>& body) {
    auto other = std::async(std::launch::async, [&] { body(1); });
    body(0);
    other.get();
  };
  const auto exchange = [&](std::size_t rank) {
    std::promise<void> submitted, sent, received;
    std::vector<float> data(1000, 1.0f);
    std::vector<std::byte> out(100'000), in(100'000);
    const auto finish = [](std::promise<void>& promise) {
      return [&promise](std::exception_ptr error) { error ? promise.set_exception(error) : promise.set_value(); };
    };
    Call call;
    call.input = call.output = {{reinterpret_cast<std::byte*>(data.data()), data.size() * sizeof(float)}};
    groups[rank]->submit(call, finish(submitted));
    groups[rank]->send(1 - static_cast<int>(rank), 1, DataType::kUInt8, out, {}, finish(sent));
    groups[rank]->receive(1 - static_cast<int>(rank), 1, DataType::kUInt8, in, {},
                          [&](std::exception_ptr error, int) { finish(received)(error); });
    for (auto* promise : {&submitted, &sent, &received}) promise->get_future().get();
    EXPECT_EQ(data[0], 2.0f);
  };
  on_both([&](std::size_t rank) {
    contexts[rank] = std::make_shared<Context>(endpoint_options());
    GroupOptions options;
    options.rank = static_cast<int>(rank);
    options.size = 2;
    options.name = "world";
    options.timeout = std::chrono::seconds(20);
    groups[rank] = std::make_unique<Group>(contexts[rank], store, options);
  });
  on_both(exchange);
  expect_in_child([&] {
    for (auto& group : groups) group.reset();
    for (auto& context : contexts) context.reset();
    alone.reset();
    return true;
  });
  on_both(exchange);
}

// A dump reads the groups on the loop thread while set_key() waits for that thread.
TEST(Contexts, ADumpWhileTheKeyIsSetHoldsNothingUp) {
  Context context(endpoint_options());
  Context::Impl& impl = context.impl();
  std::latch setting(1);
  std::promise<void> dumped;
  context.endpoint().loop().post([&] {
    setting.wait();
    // Long enough for the other thread to get as far as it can.
    const auto limit = Deadline::after(std::chrono::milliseconds(200));
    while (!limit.expired() && impl.mutex.try_lock()) {
      impl.mutex.unlock();
      std::this_thread::yield();
    }
    impl.dump_groups();
    dumped.set_value();
  });
  setting.count_down();
  impl.set_key_once(std::vector<std::byte>(32, std::byte{1}));
  dumped.get_future().get();
  EXPECT_TRUE(impl.has_key);
}

}  // namespace
}  // namespace atl::test
