// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/tcp/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <string_view>
#include <utility>

#include "atoll/transport/address.h"

namespace atl::transport {

namespace {

using std::chrono::milliseconds;
using tcp::Prefix;
using tcp::Type;

constexpr std::uint32_t kNearMicroseconds = 5000;   // round trip
constexpr std::uint32_t kMaxRoundTrip = 1'000'000;  // microseconds; longer ones are clamped
constexpr int kUnsentOfRail = 256 << 10;            // bytes

/// BBR paces each connection at its measured rate, so that when several share a path and wait for each other, the
/// others take over unused capacity only after a while: a tenth of a near link stays idle. Far paths keep the system's
/// choice, which may suit their losses.
void prefer_loss_based_control(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  char name[16] = {};
  socklen_t length = sizeof name - 1;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_rtt >= kNearMicroseconds) return;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0) return;
  if (std::string_view(name).substr(0, 3) != "bbr") return;
  for (const std::string_view other : {"cubic", "reno"}) {
    if (::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, other.data(), static_cast<socklen_t>(other.size())) == 0) return;
  }
}

/// Sends small messages at once, and lets the kernel give up a path that swallows bytes at about the time of the
/// heartbeat.
void tune(int fd, milliseconds heartbeat) {
  const int seconds = static_cast<int>(std::clamp<std::int64_t>(heartbeat.count() / 1000, 1, 3600));
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  prefer_loss_based_control(fd);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / 4));
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * seconds + 1000);
}

double round_trip_seconds(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? std::min(info.tcpi_rtt, kMaxRoundTrip) * 1e-6 : 0;
}

}  // namespace

TcpLink::TcpLink(const LinkOwner& owner, const PeerAddress& self, PeerAddress peer)
    : LinkBase(owner, std::move(peer)), self_(self), patience_(owner.options.heartbeat) {
  rails_.push_back(make_rail(
      0, 2 * sizeof(Prefix) + sizeof(tcp::OpenBody) + sizeof(FrameHeader) + owner.options.tcp_window_bytes / 4));
}

TcpChannel& TcpLink::find_or_make(const ChannelId& id, bool claim) {
  const std::lock_guard lock(channels_mutex_);
  auto found = channels_.find(id);
  if (found == channels_.end()) {
    found = channels_.emplace(id, std::make_unique<TcpChannel>(*this, id, options().tcp_window_bytes)).first;
    if (closed_early_.take(id)) {
      found->second->mark_closed();
    } else {
      ++unclaimed_;
    }
  }
  TcpChannel& channel = *found->second;
  if (claim && !channel.is_claimed() && !channel.is_closed()) {
    channel.claim();
    --unclaimed_;
  }
  if (unclaimed_ > kMaxUnclaimedChannels) throw Error(ErrorKind::kProtocol, "it opens too many channels");
  return channel;
}

Channel& TcpLink::channel(const ChannelId& id) {
  TcpChannel& channel = find_or_make(id, true);
  if (channel.is_closed()) refuse_reopening();
  return channel;
}

void TcpLink::close_channel(const ChannelId& id) {
  TcpChannel* channel = nullptr;
  {
    const std::lock_guard lock(channels_mutex_);
    const auto found = channels_.find(id);
    if (found == channels_.end()) return closed_early_.add(id);
    if (found->second->is_closed()) return;
    channel = found->second.get();
    channel->mark_closed();
    if (!channel->is_claimed()) --unclaimed_;
  }
  {
    const std::lock_guard lock(mutex_);
    if (channel->number() != 0 && can_send()) {
      if (spread_) {
        // Without a ring nothing was sent: the peer does not know the number.
        tcp::SendStream& stream = channel->stream();
        if (stream.is_open())
          spread_->push_after_frames(Type::kClose, channel->number(), {}, true, Clock::now(), &stream);
      } else {
        send_small(*rails_.front(), Lane::kData, Type::kClose, channel->number(), {});
      }
    }
  }
  loop().post([channel] { channel->free_on_loop(); });
}

bool TcpLink::send_control(std::span<const std::byte> message) { return queue_control(Lane::kUrgent, message); }

bool TcpLink::send_control_after_frames(std::span<const std::byte> message) {
  return queue_control(Lane::kData, message);
}

std::string TcpLink::describe() const {
  const std::lock_guard lock(mutex_);
  if (spread_) return describe_rails();
  const std::string& path = rails_.front()->path();
  return path.empty() ? "tcp (not connected)" : "tcp " + path;
}

void TcpLink::attach_on_loop(ByteStream stream, bool initiator, const PeerAddress& authenticated) {
  is_initiator_ = initiator;
  plan_rails_on_loop(authenticated);
  last_tick_ = Clock::now();
  open_rail_on_loop(*rails_.front(), std::move(stream));
  mark_up_on_loop();
  observer().on_link_open(*this);
}

void TcpLink::open_rail_on_loop(Rail& rail, ByteStream stream) {
  const int fd = stream.fd();
  tune(fd, options().heartbeat);
  // An acknowledgement is sent after what the socket holds. If the socket held everything that is on its way, a rail
  // that is full in one direction would be acknowledged so late that the other direction idles and its rate is
  // underestimated.
  if (spread_) set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentOfRail);
  {
    const std::lock_guard lock(mutex_);
    rail.open(std::move(stream));
    if (spread_) {
      auto expected = ways_[rail.index()].expected;
      expected.latency_seconds += round_trip_seconds(fd) / 2;
      spread_->open(rail, expected, Clock::now());
    }
  }
  send_heartbeat_on_loop(rail);  // reports our interval to the peer
  // Edge-triggered: the loop learns of room in the socket without a call per frame.
  loop().add_fd_on_loop(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                        [this, &rail](std::uint32_t events) { on_event_on_loop(rail, events); });
  // The link's own bytes may have arrived right after the handshake.
  if (rail.holds_input_on_loop()) loop().post([this, &rail] { receive_on_loop(rail); });
}

void TcpLink::begin_shutdown_on_loop() {
  {
    const std::lock_guard lock(mutex_);
    if (!can_send()) return;
    if (spread_) {
      spread_->push_after_frames(Type::kBye, 0, {}, true, Clock::now());
    } else {
      send_small(*rails_.front(), Lane::kData, Type::kBye, 0, {});
    }
    said_bye_ = true;
  }
  flush_on_loop(*rails_.front());
}

bool TcpLink::drained_on_loop() const {
  const std::lock_guard lock(mutex_);
  const bool is_through = sent_all_ && peer_done_;
  return is_through || (spread_ ? open_rails_on_loop() == 0 : !rails_.front()->can_write());
}

void TcpLink::teardown_on_loop() noexcept {
  const std::lock_guard lock(mutex_);
  tcp::SegmentList unfinished;
  for (const auto& rail : rails_) {
    if (rail->is_open()) loop().remove_fd_on_loop(rail->fd());
    rail->close(&unfinished);
  }
}

void TcpLink::on_tick_on_loop(Clock::time_point now) {
  const auto passed = counted_time(last_tick_, now, options());
  for (const auto& rail : rails_) {
    // The kernel may hold back the first bytes of a large frame; they are a sign of life all the same.
    if (rail->is_open() && rail->bytes_in() == rail->watch.seen_in) receive_on_loop(*rail);
    if (state() != LinkState::kUp) return;
  }
  watch_rails_on_loop(passed);
}

}  // namespace atl::transport
