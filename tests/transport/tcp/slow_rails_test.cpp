// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/core/log.h"
#include "tests/transport/tcp/railed.h"

namespace atl::test {
namespace {

/// Keeps the log lines about rails that are down.
class Losses : public LogSink {
 public:
  Losses() { set_log_sink(this); }
  ~Losses() override { set_log_sink(nullptr); }
  void write(LogLevel, std::string_view message) override {
    const std::lock_guard lock(mutex_);
    if (message.find(" is down (") != std::string_view::npos) lines_.emplace_back(message);
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

// What a rail gets before it was measured takes this one almost two seconds, and an acknowledgement waits as long for
// it.
TEST(TcpSlowRails, ARailThatIsSlowIsNotDead) {
  Losses losses;
  {
    Railed pair(2, {.bytes_per_second = 150e3, .delay = {}, .half_duplex = false}, std::size_t{1} << 20);
    pair.exchange(100, 16000);
    pair.expect_no_failure();
    pair.wait_for_rails(2);
    EXPECT_EQ(losses.lines(), std::vector<std::string>{});
  }
}

}  // namespace
}  // namespace atl::test
