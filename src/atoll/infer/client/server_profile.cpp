// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/client/server_profile.h"

#include <condition_variable>
#include <mutex>
#include <optional>

#include "atoll/core/error.h"

namespace atl::infer {
namespace {

constexpr std::chrono::milliseconds kProfilePollPeriod{100};

// Waits for a client's first result: the server is ready, or it is lost.
class Waiting final : public LinkOwner {
 public:
  // None when neither has happened within kProfilePollPeriod.
  std::optional<Profile> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kProfilePollPeriod, [this] { return profile_ || lost_; });
    if (!profile_ && lost_) throw *lost_;
    return profile_;
  }

 private:
  void on_message(const wire::Message& message) override {
    const auto* ready = std::get_if<wire::Ready>(&message);
    if (ready == nullptr) return;
    const std::lock_guard lock(mutex_);
    profile_ = profile_of(*ready);
    changed_.notify_all();
  }
  void on_lost(const Error& error) override {
    const std::lock_guard lock(mutex_);
    lost_ = error;
    changed_.notify_all();
  }
  std::optional<wire::Ack> on_tensor(const wire::FrameHeader& /*header*/,
                                     std::span<const std::byte> /*payload*/) override {
    return std::nullopt;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Profile> profile_;
  std::optional<Error> lost_;
};

}  // namespace

Profile profile_of(const wire::Ready& ready) {
  Profile profile;
  profile.device = ready.device;
  profile.input_tensor = ready.input_tensor;
  profile.dim = ready.dim;
  profile.fixed = ready.fixed;
  profile.per_row = ready.per_row;
  profile.whole = ready.whole;
  return profile;
}

Profile profile_of_server(const ClientOptions& options, const ModelFiles& files, Deadline deadline,
                          const std::function<bool(const LinkStatus&)>& go_on) {
  Waiting waiting;
  Client client(options, files, waiting);
  client.start();
  for (;;) {
    std::optional<Profile> profile = waiting.wait();
    if (profile) return *profile;
    const LinkStatus status = client.status();
    if (status.state == LinkState::kRefused) throw Error(ErrorKind::kRefused, status.text);
    // The error that ends a connection is thrown by wait().
    if (status.state == LinkState::kLost && status.connections == 0) {
      throw Error(ErrorKind::kUnavailable, "the server at " + options.server + " cannot be reached: " + status.text);
    }
    if (deadline.expired()) {
      throw Error(ErrorKind::kTimeout,
                  "the server at " + options.server + " has not measured the model in time: " + status.text);
    }
    if (go_on && !go_on(status)) throw Error(ErrorKind::kAborted, "the wait for the server's profile was cancelled");
  }
}

}  // namespace atl::infer
