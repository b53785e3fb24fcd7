// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/ucx/link.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "atoll/core/log.h"
#include "atoll/transport/auth.h"

namespace atl::transport {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kProbePatience{5000};  // then the two ends do without UCX

}  // namespace

UcxLink::UcxLink(const LinkOwner& owner, PeerAddress peer, bool same_host, std::shared_ptr<ucx::Context> context)
    : LinkBase(owner, peer),
      same_host_(same_host),
      context_(std::move(context)),
      inner_({owner.options, owner.loop, owner.doorbell, static_cast<LinkObserver&>(*this)}, alone_, std::move(peer)),
      direct_(owner.loop, [this] { drive_on_loop(); }),
      registrar_(
          [this](std::span<std::byte> bytes) {
            return std::make_unique<ucx::Registration>(context_, bytes.data(), bytes.size(), MemoryKind::kHost);
          },
          [this](const Error& refusal) { note_refusal_on_loop(refusal); }) {
  inner_.allow_longer_control();
  for (Sending& each : sendings_) {
    each.link = this;
    free_sendings_.push_back(&each);
  }
  for (Arrival& each : arrivals_) {
    each.link = this;
    free_arrivals_.push_back(&each);
  }
}

UcxChannel& UcxLink::find_or_make(const ChannelId& id, bool claim) {
  const std::lock_guard lock(channels_mutex_);
  auto found = channels_.find(id);
  if (found == channels_.end()) {
    // The entry is added last, and complete: other threads iterate over all entries.
    auto made = std::make_unique<UcxChannel>(*this, id, options().tcp_window_bytes);
    {
      const std::lock_guard wake_lock(wake_mutex_);
      woken_.reserve(channels_.size() + 1);  // so that wake() allocates nothing
    }
    found = channels_.emplace(id, std::move(made)).first;
    if (closed_early_.take(id)) {
      found->second->mark_closed();
    } else {
      ++unclaimed_;
    }
  }
  UcxChannel& channel = *found->second;
  if (claim && !channel.is_claimed() && !channel.is_closed()) {
    if (over_stream_) channel.go_over_stream(inner_.channel(id));
    channel.open();
    channel.claim();
    --unclaimed_;
  }
  if (unclaimed_ > kMaxUnclaimedChannels) throw Error(ErrorKind::kProtocol, "it opens too many channels");
  return channel;
}

UcxChannel* UcxLink::find(const ChannelId& id) const {
  const std::lock_guard lock(channels_mutex_);
  const auto found = channels_.find(id);
  return found == channels_.end() ? nullptr : found->second.get();
}

Channel& UcxLink::channel(const ChannelId& id) {
  UcxChannel& channel = find_or_make(id, true);
  if (channel.is_closed()) refuse_reopening();
  return channel;
}

void UcxLink::close_channel(const ChannelId& id) {
  UcxChannel* channel = nullptr;
  {
    const std::lock_guard lock(channels_mutex_);
    const auto found = channels_.find(id);
    if (found == channels_.end()) {
      closed_early_.add(id);
    } else if (!found->second->is_closed()) {
      channel = found->second.get();
      channel->mark_closed();
      if (!channel->is_claimed()) --unclaimed_;
    }
  }
  inner_.close_channel(id);  // the peer alone may have opened it there, or may do so yet
  if (channel == nullptr) return;
  loop().post([this, channel] {
    channel->receiving().close_on_loop();
    free_closed_on_loop(*channel);
    activate_on_loop(*channel);  // returns the peer's credit; the peer may be up and sending before this end is
    if (phase_ == Phase::kUcx) drive_on_loop();
  });
}

std::string UcxLink::describe() const {
  const std::string path = inner_.describe();
  const std::lock_guard lock(channels_mutex_);
  if (over_stream_) return path + " (not UCX: " + path_ + ")";
  if (path_.empty()) return "ucx (not connected)";
  return "ucx " + path_ + (unregistered_.empty() ? "" : " (staged: " + unregistered_ + ")") + ", beside " + path;
}

void UcxLink::attach_on_loop(ByteStream stream, bool initiator, const PeerAddress& authenticated) {
  wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) throw unavailable("cannot make an event descriptor for a UCX link", errno);
  stream_ = std::move(stream);
  initiator_ = initiator;
  authenticated_ = authenticated;
  last_tick_ = Clock::now();
  std::string obstacle;
  const auto address = open_worker_on_loop(&obstacle);
  fill_random(std::as_writable_bytes(std::span(&secret_, 1)));
  agreement_.emplace(secret_, address, obstacle);
  loop().add_fd_on_loop(wake_.get(), EPOLLIN, [this](std::uint32_t) {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
    drive_on_loop();
  });
  phase_ = Phase::kAgreeing;
  constexpr std::uint32_t kEvents = EPOLLIN | EPOLLRDHUP;
  loop().add_fd_on_loop(stream_.fd(), kEvents, [this](std::uint32_t events) { on_agreement_event_on_loop(events); });
  watched_ = kEvents;
  step_agreement_on_loop();
}

/// Returns this end's address in UCX, or nothing and the obstacle.
std::vector<std::byte> UcxLink::open_worker_on_loop(std::string* obstacle) {
  try {
    auto worker = std::make_unique<ucx::Worker>(context_, static_cast<ucx::WorkerSink&>(*this));
    auto address = worker->address();
    loop().add_fd_on_loop(worker->descriptor(), EPOLLIN, [this](std::uint32_t) { drive_on_loop(); });
    watches_worker_ = hears_worker_ = true;
    worker_ = std::move(worker);
    return address;
  } catch (const Error& error) {
    *obstacle = error.what();
    return {};
  }
}

void UcxLink::drop_worker_on_loop() noexcept {
  if (!worker_) return;
  unwatch_worker_on_loop();
  worker_.reset();
}

void UcxLink::unwatch_worker_on_loop() {
  if (const auto pause = std::exchange(pause_, std::nullopt)) loop().cancel_timer_on_loop(*pause);
  if (std::exchange(watches_worker_, false)) loop().remove_fd_on_loop(worker_->descriptor());
}

void UcxLink::on_agreement_event_on_loop(std::uint32_t events) {
  guarded_on_loop([&] {
    if ((events & EPOLLOUT) != 0 && !flush_agreement_on_loop()) return;
    if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) read_agreement_on_loop(events);
    if (phase_ == Phase::kAgreeing) step_agreement_on_loop();
  });
}

bool UcxLink::flush_agreement_on_loop() {
  const auto more = agreement_->take_output();
  agreement_output_.insert(agreement_output_.end(), more.begin(), more.end());
  if (!stream_.write_from(agreement_output_)) {
    fail_on_loop(lost(with_errno("died while the two ends negotiated UCX", errno)));
    return false;
  }
  const std::uint32_t events = EPOLLIN | EPOLLRDHUP | (agreement_output_.empty() ? 0U : EPOLLOUT);
  if (events != watched_) loop().modify_fd_on_loop(stream_.fd(), events);
  watched_ = events;
  return true;
}

void UcxLink::read_agreement_on_loop(std::uint32_t events) {
  std::array<std::byte, 4096> buffer;
  const bool has_ended = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
  if (agreement_->wanted() == 0 && has_ended) return fail_on_loop(lost("died while the two ends negotiated UCX"));
  while (agreement_->wanted() != 0) {
    const iovec piece{buffer.data(), std::min(buffer.size(), agreement_->wanted())};
    bool drained = false;
    const auto got = stream_.read({&piece, 1}, &drained);
    if (got < 0 && errno == EAGAIN) return;
    if (got < 0) return fail_on_loop(lost(with_errno("died while the two ends negotiated UCX", errno)));
    if (got == 0) return fail_on_loop(lost("died while the two ends negotiated UCX: end of file"));
    agreement_->receive(std::span(buffer).first(static_cast<std::size_t>(got)));
  }
}

void UcxLink::step_agreement_on_loop() {
  if (agreement_->is_probing() && !std::exchange(has_probed_, true)) probe_on_loop();
  if (agreement_->is_probing() && !agreement_->has_voted() && probe_has_come_) agreement_->vote("");
  if (!flush_agreement_on_loop()) return;
  // The rest of the output must precede anything the inner link sends.
  if (agreement_->is_done() && agreement_output_.empty()) settle_on_loop();
}

void UcxLink::probe_on_loop() {
  std::string objection;
  try {
    worker_->connect(agreement_->peer_address(), same_host_);
    Sending* const sending = free_sendings_.back();
    free_sendings_.pop_back();
    sending->channel = nullptr;
    sending->note = {};
    sending->note.secret = agreement_->peer_secret();
    worker_->send(ucx::MessageKind::kProbe, bytes_of(sending->note), {}, *sending);
  } catch (const Error& error) {
    objection = error.what();
  }
  if (!objection.empty()) return agreement_->vote(objection);
  signal();  // to progress
}

void UcxLink::settle_on_loop() {
  loop().remove_fd_on_loop(stream_.fd());
  watched_ = 0;
  const bool agreed = agreement_->agreed();
  if (agreed) {
    std::string transports = worker_->transports();
    const std::lock_guard lock(channels_mutex_);
    path_ = transports.empty() ? "connected" : std::move(transports);
  } else {
    go_over_stream_on_loop(agreement_->objection());
  }
  phase_ = agreed ? Phase::kUcx : Phase::kStream;
  if (agreed) direct_.begin_on_loop(*worker_, context_, agreement_->peer_secret(), secret_);
  inner_.attach_on_loop(std::move(stream_), initiator_, authenticated_);
  if (inner_.state() != LinkState::kUp) return;  // on_link_failed was called
  over_ucx_.store(agreed, std::memory_order_release);
  mark_up_on_loop();
  observer().on_link_open(*this);
  if (shutdown_requested_) begin_shutdown_on_loop();
  if (agreed && phase_ == Phase::kUcx) drive_on_loop();
}

void UcxLink::go_over_stream_on_loop(const std::string& why) {
  drop_worker_on_loop();
  {
    const std::lock_guard lock(channels_mutex_);
    over_stream_ = true;
    path_ = why;
    for (const auto& [id, channel] : channels_) {
      if (channel->is_claimed() && !channel->is_closed()) channel->go_over_stream(inner_.channel(id));
    }
  }
  log(LogLevel::kWarning, "UCX cannot serve the link to " + peer_name() + ", which uses TCP instead; " + why);
}

void UcxLink::on_connecting_tick_on_loop(Clock::time_point now) {
  if (phase_ != Phase::kAgreeing) return;
  agreeing_ += counted_time(last_tick_, now, options());
  if (worker_) drive_on_loop();
  if (phase_ != Phase::kAgreeing) return;
  const auto patience = std::min(kProbePatience, options().connect_timeout / 3);
  if (agreement_->is_probing() && !agreement_->has_voted() && agreeing_ >= patience) {
    agreement_->vote("nothing arrived through UCX within " + std::to_string(patience.count()) + " ms");
    return guarded_on_loop([this] { step_agreement_on_loop(); });
  }
  if (agreeing_ < patience + answer_patience(options())) return;
  fail_on_loop(lost("has sent nothing while the two ends negotiated UCX: stopped, or its machine hangs"));
}

void UcxLink::on_tick_on_loop(Clock::time_point now) {
  inner_.tick_on_loop(now);
  if (phase_ != Phase::kUcx) return;
  continue_leaving_on_loop();
  drive_on_loop();  // UCX maintains its paths while it progresses
}

void UcxLink::teardown_on_loop() noexcept {
  const bool was_watching = phase_ != Phase::kWaiting && phase_ != Phase::kEnded;
  phase_ = Phase::kEnded;
  if (watched_ != 0) loop().remove_fd_on_loop(stream_.fd());
  watched_ = 0;
  stream_.close();
  if (was_watching) loop().remove_fd_on_loop(wake_.get());
  try {
    throw_error();
  } catch (const Error& why) {
    direct_.end_on_loop(why);
    drop_worker_on_loop();
    direct_.end_rest_on_loop();
    inner_.close_on_loop(why);
  }
  const std::lock_guard lock(channels_mutex_);
  for (const auto& [id, channel] : channels_) {
    channel->send_memory.reset();
    channel->receive_memory.reset();
  }
}

}  // namespace atl::transport
