// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/client/client.h"

#include <pthread.h>

#include <algorithm>
#include <future>
#include <utility>

namespace atl::infer {
namespace {

constexpr std::chrono::milliseconds kClientCloseTimeout{200};
constexpr std::chrono::milliseconds kConnectPollPeriod{50};
constexpr std::chrono::seconds kStaysUsed{2};

// The refusal to report for an error that every further attempt would meet again; empty for any other error.
std::string final_refusal(const Error& error, const ServerLink* link) {
  if (link == nullptr || link->was_ready()) return {};
  std::string text = error.what();
  switch (error.kind()) {
    case ErrorKind::kMismatch: return text;
    case ErrorKind::kRefused:
      if (link->is_open()) return text;
      return text + ": give this robot a copy of the server's key file (atoll serve --key-file)";
    case ErrorKind::kProtocol:  // an open link has spoken to a server, whose fault may be temporary
      return link->is_open() ? std::string() : text + ": is it the address of an atoll serve?";
    default: return {};
  }
}

// Runs on a thread of its own, which owns what it uses: the name service may take far longer than anyone should wait.
std::future<Fd> started(std::packaged_task<Fd()> attempt) {
  std::future<Fd> opened = attempt.get_future();
  std::thread([attempt = std::move(attempt)]() mutable {
    pthread_setname_np(pthread_self(), "atoll-connect");
    attempt();
  }).detach();
  return opened;
}

}  // namespace

Client::Client(ClientOptions options, ModelFiles files, LinkOwner& owner, Connect connect)
    : options_(std::move(options)),
      address_(transport::parse_host_port(options_.server)),
      files_(std::move(files)),
      owner_(owner),
      connect_(std::move(connect)),
      loop_("atoll-client") {
  status_.text = "connecting";
}

void Client::start() {
  connector_ = std::thread([this] { connect_forever(); });
}

Client::~Client() { stop(); }

void Client::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_stopped_, true)) return;
    phase_ = Phase::kClosing;
    changed_.notify_all();
  }
  if (connector_.joinable()) connector_.join();
  bool says_goodbye = false;
  loop_.run_and_wait([&] {
    says_goodbye = link_ != nullptr;
    if (link_) link_->close();
  });
  if (says_goodbye) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kClientCloseTimeout, [this] { return status_.state == LinkState::kClosed; });
  }
  loop_.run_and_wait([this] {
    if (timer_) loop_.cancel_timer_on_loop(*timer_);
    link_.reset();
  });
}

void Client::send(const wire::Message& message) {
  // An inference's rows follow its Run; anything after its Cancel belongs to another inference.
  if (std::holds_alternative<wire::Run>(message) || std::holds_alternative<wire::Cancel>(message)) {
    outbox_.push(message);
    return feed();
  }
  loop_.post([this, message] {
    if (link_ && link_->takes_inferences()) link_->send(message);
  });
}

void Client::send(const wire::FrameHeader& header, HostBytes payload) {
  outbox_.push(header, std::move(payload));
  feed();
}

std::uint64_t Client::over(std::uint64_t inference, bool cancelled) {
  const Outbox::Unsent unsent = outbox_.over(inference, !cancelled);
  if (unsent.cut) {
    rates_.given_up({unsent.cut->id, unsent.cut->tensor, unsent.cut->rows_begin},
                    static_cast<double>(unsent.cut->offset));
  }
  if (cancelled) send(wire::Cancel{inference});
  return unsent.bytes;
}

void Client::feed() {
  if (is_fed_.exchange(true)) return;
  loop_.post([this] {
    is_fed_ = false;
    feed_on_loop();
  });
}

void Client::feed_on_loop() {
  if (!link_ || !link_->takes_inferences()) return outbox_.clear();
  while (link_->wants_more()) {
    const std::optional<Outbox::Frame> frame = outbox_.take(link_->memory());
    if (!frame) return;
    if (frame->message) {
      link_->send(*frame->message);
    } else {
      link_->send_rows(frame->header, frame->bytes);
    }
  }
}

LinkStatus Client::status() const {
  LinkStatus status;
  {
    const std::lock_guard lock(mutex_);
    status = status_;
  }
  status.probe_bytes = rates_.probe_bytes();
  return status;
}

bool Client::is_ready() const {
  const std::lock_guard lock(mutex_);
  return status_.state == LinkState::kReady;
}

void Client::used() {
  const std::lock_guard lock(mutex_);
  used_ = Clock::now();
}

void Client::reconnect() {
  loop_.post([this] {
    if (link_) link_->close();
  });
}

// A refusal is cleared once the server gets further than it did when it refused.
void Client::on_state(LinkState state, const std::string& text) {
  const bool knows_robot = link_ && link_->model() != 0;
  const std::lock_guard lock(mutex_);
  status_.state = state;
  status_.text = text;
  const bool wants_model = state == LinkState::kUploading || state == LinkState::kReady;
  if (!wants_model && !(knows_robot && refuses_robot_)) return;
  status_.refusal.clear();
  refuses_robot_ = false;
}

void Client::on_refused(const std::string& text, bool is_final) {
  {
    const std::lock_guard lock(mutex_);
    status_.state = LinkState::kRefused;
    status_.text = status_.refusal = text;
    status_.is_final = is_final;
    refuses_robot_ = false;
  }
  owner_.on_refused(text, is_final);
}

// The connection is still on the call stack, so the next task destroys it.
void Client::on_lost(const Error& error) {
  const std::shared_ptr<ServerLink> gone(std::move(link_));
  if (timer_) loop_.cancel_timer_on_loop(*timer_);
  timer_.reset();
  loop_.post([gone] {});
  const std::string refusal = final_refusal(error, gone.get());
  bool is_closing = false;
  {
    const std::lock_guard lock(mutex_);
    is_closing = phase_ == Phase::kClosing;
    resets_backoff_ = gone && gone->was_ready();
    if (!is_closing) phase_ = Phase::kWanted;
    status_.state = is_closing ? LinkState::kClosed : LinkState::kLost;
    lost_ = error.what();
    status_.text = is_closing ? "closed" : "lost: " + lost_;
    if (!refusal.empty()) {
      status_.refusal = refusal;
      status_.is_final = refuses_robot_ = true;
    }
    changed_.notify_all();
  }
  if (is_closing) return;
  if (!refusal.empty()) owner_.on_refused(refusal, true);
  owner_.on_lost(error);
}

void Client::connect_forever() {
  pthread_setname_np(pthread_self(), "atoll-connect");
  auto pause = options_.least_backoff;
  std::unique_lock lock(mutex_);
  for (;;) {
    try {
      if (!connect_once(lock, pause)) return;
    } catch (const std::exception& error) {  // of any type: otherwise this thread would end and never reconnect
      if (!lock.owns_lock()) lock.lock();
      if (phase_ == Phase::kClosing) return;
      phase_ = Phase::kWanted;
      status_.state = LinkState::kLost;
      status_.text = std::string("lost: ") + error.what();
    }
  }
}

// Waits until a connection is wanted and opens it; false when the client is closing.
bool Client::connect_once(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds& pause) {
  changed_.wait(lock, [this] { return phase_ != Phase::kConnected; });
  if (phase_ == Phase::kClosing) return false;
  if (std::exchange(resets_backoff_, false)) pause = options_.least_backoff;
  if (status_.connections > 0 || status_.state == LinkState::kLost) {
    if (changed_.wait_for(lock, pause, [this] { return phase_ == Phase::kClosing; })) return false;
    pause = std::min(2 * pause, options_.most_backoff);
  }
  lock.unlock();
  const auto attempt = [connect = connect_, to = address_, limit = options_.connect_timeout] {
    return connect(to.host, to.port, limit);
  };
  std::future<Fd> opened = started(std::packaged_task<Fd()>(attempt));
  while (opened.wait_for(kConnectPollPeriod) != std::future_status::ready) {
    lock.lock();
    if (phase_ == Phase::kClosing) return false;
    lock.unlock();
  }
  const auto socket = std::make_shared<Fd>(opened.get());
  lock.lock();
  if (phase_ == Phase::kClosing) return false;
  phase_ = Phase::kConnected;
  ++status_.connections;
  status_.state = LinkState::kConnecting;
  status_.text = lost_.empty() ? "connecting" : "connecting again, lost before: " + lost_;
  loop_.post([this, socket] { connected_on_loop(std::move(*socket)); });
  return true;
}

void Client::connected_on_loop(Fd socket) {
  try {
    LinkOwner& self = *this;
    link_ = std::make_unique<ServerLink>(loop_, self, std::move(socket), options_, files_, rates_);
  } catch (const Error& error) {
    return on_lost(error);
  } catch (const std::exception& error) {
    return on_lost(Error(ErrorKind::kInternal, "no connection to " + options_.server + ": " + error.what()));
  }
  timer_ = loop_.add_timer_on_loop(link_->tick_period(), true, [this] { tick_on_loop(); });
}

void Client::tick_on_loop() {
  if (!link_) return;
  bool is_used = false;
  {
    const std::lock_guard lock(mutex_);
    is_used = Clock::now() - used_ < kStaysUsed;
  }
  link_->tick(is_used);
}

}  // namespace atl::infer
