// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/endpoint.h"

#include <filesystem>
#include <system_error>
#include <thread>

#include "atoll/core/log.h"
#include "atoll/transport/auth.h"
#include "atoll/transport/endpoint/impl.h"
#include "atoll/transport/handshake/handshake.h"
#include "atoll/transport/rails/interfaces.h"
#include "atoll/transport/rails/rails.h"
#include "atoll/transport/shm/link.h"
#include "atoll/transport/tcp/link.h"
#include "atoll/transport/ucx/link.h"

namespace atl::transport {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDestructorLinger{500};
constexpr milliseconds kDrainCheck{1};
constexpr milliseconds kYieldPatience{500};

void check_window(const char* name, std::size_t bytes) {
  if (is_valid_window(bytes)) return;
  throw Error(ErrorKind::kInvalidArgument, name, " is ", bytes, "; it must be a power of two from 64 KiB to 1 GiB");
}

void check(const EndpointOptions& options) {
  check_window("shm_window_bytes", options.shm_window_bytes);
  check_window("tcp_window_bytes", options.tcp_window_bytes);
  if (options.job.size() > kMaxJobBytes) {
    throw Error(ErrorKind::kInvalidArgument, "the job's name has more than ", kMaxJobBytes, " characters");
  }
  if (options.heartbeat < milliseconds(1) || options.connect_timeout < milliseconds(1)) {
    throw Error(ErrorKind::kInvalidArgument, "heartbeat and connect timeout must be at least 1 ms");
  }
}

std::shared_ptr<const Credentials> credentials_of(const EndpointOptions& options) {
  if (!options.tls) return nullptr;
  if (options.transport == TransportChoice::kUcx) {
    throw Error(ErrorKind::kInvalidArgument,
                "ATOLL_TRANSPORT=ucx with ATOLL_TLS=1: UCX does not encrypt what it carries; use auto or tcp");
  }
  if (options.key.empty()) {
    throw Error(ErrorKind::kInvalidArgument,
                "ATOLL_TLS=1 needs ATOLL_KEY_FILE, equal on all ranks: a key that travels through the store is known "
                "to everyone who can read the store. (umask 077; openssl rand -hex 32 > FILE) makes one");
  }
  return Credentials::of_key(options.key);
}

const char* display_name(TransportChoice choice) {
  switch (choice) {
    case TransportChoice::kAuto: break;
    case TransportChoice::kShm: return "shared memory";
    case TransportChoice::kTcp: return "TCP";
    case TransportChoice::kUcx: return "UCX";
  }
  return "nothing";
}

/// Explains why choose_kind finds nothing.
std::string obstacle_between(const PeerAddress& a, const PeerAddress& b) {
  const bool both_insist = a.transport != TransportChoice::kAuto && b.transport != TransportChoice::kAuto;
  if (both_insist && a.transport != b.transport) {
    return std::string("one insists on ") + display_name(a.transport) +
           " (ATOLL_TRANSPORT), but the other insists on " + display_name(b.transport) +
           "; set it equally on all ranks, or leave it out";
  }
  return "one insists on shared memory (ATOLL_TRANSPORT), but the other is on another host (ATOLL_HOST); leave "
         "ATOLL_TRANSPORT out";
}

/// Returns whether the system has a network device for which UCX is worth opening. Costs a lookup in sysfs.
bool has_rdma_device() noexcept {
  std::error_code error;
  // Each InfiniBand or RoCE device has an entry; the folder exists where the kernel knows the kind at all.
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", error);
  return !error && devices != std::filesystem::directory_iterator();
}

}  // namespace

std::optional<LinkKind> choose_kind(const PeerAddress& a, const PeerAddress& b) noexcept {
  const bool wants_shm = a.transport == TransportChoice::kShm || b.transport == TransportChoice::kShm;
  const bool wants_tcp = a.transport == TransportChoice::kTcp || b.transport == TransportChoice::kTcp;
  const bool wants_ucx = a.transport == TransportChoice::kUcx || b.transport == TransportChoice::kUcx;
  const bool same_host = a.host == b.host;
  if (wants_shm) return wants_tcp || wants_ucx || !same_host ? std::nullopt : std::optional(LinkKind::kShm);
  if (wants_tcp) return wants_ucx ? std::nullopt : std::optional(LinkKind::kTcp);
  const UcxReach needed = wants_ucx ? UcxReach::kHost : UcxReach::kRdma;
  if ((wants_ucx || !same_host) && a.ucx >= needed && b.ucx >= needed) return LinkKind::kUcx;
  return same_host ? LinkKind::kShm : LinkKind::kTcp;
}

Endpoint::Impl::Impl(EndpointOptions given, LinkObserver& watcher)
    : options((check(given), std::move(given))),
      observer(watcher),
      loop(std::make_unique<Loop>("atoll-net")),
      owner_{options, *loop, bell, observer},
      credentials_(credentials_of(options)),
      process_(fork_depth()) {
  UnixListener unix_listener = listen_unix();
  TcpListener tcp_listener = listen_tcp(options.port_first, options.port_last);
  fill_random(std::as_writable_bytes(std::span(self.id.bytes)));
  self.host = host_identity(options.host);
  self.unix_name = unix_listener.name;
  self.name = options.name;
  self.transport = options.transport;
  open_ucx();
  const auto hosts = advertised_hosts(options);
  for (const auto& host : hosts) self.tcp.push_back(host + ":" + std::to_string(tcp_listener.port));
  choose_rails(options, hosts.front(), tcp_listener.port, self);
  static_cast<void>(self.encode());  // throws on a name that is too long
  key_ = options.key;
  acceptor_ = std::make_unique<Acceptor>(*loop, static_cast<Acceptor::Owner&>(*this), std::move(unix_listener),
                                         std::move(tcp_listener), options.connect_timeout,
                                         [this](LinkKind kind) { return Handshake::acceptor(identity(kind)); });
  try {
    loop->run_and_wait([this] {
      acceptor_->begin();
      if (!key_.empty()) acceptor_->allow_handshakes();
      ticker_ = loop->add_timer_on_loop(tick_interval(options), true, [this] { tick_on_loop(); });
    });
  } catch (...) {
    loop->run_and_wait([this] { acceptor_->stop(); });
    throw;
  }
}

Endpoint::Impl::~Impl() {
  if (fork_depth() == process_) {
    shutdown(Deadline::after(kDestructorLinger));
  } else {
    // A forked child has neither the loop's thread nor its descriptors, so nothing can be unregistered there.
    static_cast<void>(acceptor_.release());
    for (auto& [id, entry] : entries_) {
      static_cast<void>(entry.connector.release());
      for (auto& rail : entry.rails) static_cast<void>(rail.release());
    }
  }
  loop.reset();
}

/// UCX must be available if the user requests it. Otherwise it is used between hosts that both have RDMA, and is not
/// even opened elsewhere, because that takes a part of a second.
void Endpoint::Impl::open_ucx() {
  const bool is_requested = options.transport == TransportChoice::kUcx;
  if (!is_requested && (options.transport != TransportChoice::kAuto || !has_rdma_device())) return;
  if (credentials_) return log(LogLevel::kWarning, "RDMA is not used, because ATOLL_TLS=1 and UCX does not encrypt");
  try {
    ucx_ = ucx::Context::open();
    self.ucx = ucx_->has_rdma() ? UcxReach::kRdma : UcxReach::kHost;
  } catch (const Error& error) {
    if (is_requested) throw Error(error.kind(), std::string("ATOLL_TRANSPORT=ucx: ") + error.what());
    log(LogLevel::kInfo, std::string("RDMA is not used: ") + error.what());
  }
}

HandshakeIdentity Endpoint::Impl::identity(LinkKind kind, std::uint8_t rail) const {
  return {options.job, options.attempt, self, key_, kind, rail, kind == LinkKind::kTcp ? credentials_ : nullptr};
}

void Endpoint::Impl::set_key(std::vector<std::byte> key) {
  if (key.empty()) throw Error(ErrorKind::kInvalidArgument, "the job's key is empty");
  loop->run_and_wait([&] {
    if (ended_) return;
    key_ = std::move(key);
    acceptor_->allow_handshakes();
    for (Entry* entry : entries()) connect_on_loop(*entry);
  });
}

Endpoint::Impl::Entry* Endpoint::Impl::find(const PeerId& peer) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(peer);
  return found == entries_.end() ? nullptr : &found->second;
}

Endpoint::Impl::Entry& Endpoint::Impl::find_or_make(const PeerAddress& peer, bool* made) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[peer.id];
  *made = entry.link == nullptr;
  if (*made) {
    entry.address = peer;
    const auto kind = choose_kind(self, peer);
    if (kind == LinkKind::kShm) {
      entry.link = std::make_unique<ShmLink>(owner_, peer);
    } else if (kind == LinkKind::kUcx) {
      entry.link = std::make_unique<UcxLink>(owner_, peer, self.host == peer.host, ucx_);
    } else {
      entry.link = std::make_unique<TcpLink>(owner_, self, peer);
    }
  }
  return entry;
}

std::vector<Endpoint::Impl::Entry*> Endpoint::Impl::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<Entry*> all;
  for (const auto& [id, entry] : entries_) all.push_back(const_cast<Entry*>(&entry));
  return all;
}

std::vector<Link*> Endpoint::Impl::links() const {
  std::vector<Link*> all;
  for (const Entry* entry : entries()) all.push_back(entry->link.get());
  return all;
}

Link& Endpoint::Impl::link(const PeerAddress& peer) {
  if (peer.id == self.id) throw Error(ErrorKind::kInvalidArgument, "an endpoint has no link to itself");
  bool made = false;
  Entry& entry = find_or_make(peer, &made);
  if (made) loop->post([this, &entry] { connect_on_loop(entry); });
  return *entry.link;
}

void Endpoint::Impl::connect_on_loop(Entry& entry) {
  if (entry.link->state() != LinkState::kConnecting || entry.attached || entry.connector) return;
  if (ended_) return entry.link->close_on_loop(*ended_);
  const auto kind = choose_kind(self, entry.address);
  if (!kind) {
    return entry.link->fail_on_loop(Error(
        ErrorKind::kUnavailable,
        "no transport suits this rank and " + entry.link->peer_name() + ": " + obstacle_between(self, entry.address)));
  }
  if (key_.empty()) return;  // set_key comes back here
  entry.connector = std::make_unique<Connector>(
      *loop, static_cast<Connector::Owner&>(*this), options, entry.address, stream_of(*kind),
      [this](const PeerId& target, LinkKind of) { return Handshake::initiator(identity(of), target); });
  entry.connector->begin();
}

void Endpoint::Impl::tick_on_loop() {
  const auto now = Clock::now();
  acceptor_->tick(now);
  for (Entry* entry : entries()) {
    if (entry->connector) entry->connector->tick(now);
    for (std::size_t i = entry->rails.size(); i-- != 0;) entry->rails[i]->tick(now);  // backwards: one may be removed
    entry->link->tick_on_loop(now);
    connect_rails_on_loop(*entry);
    if (entry->link->state() != LinkState::kConnecting) entry->connector.reset();
    // The peer's own connection was expected, or was to replace ours, and did not arrive.
    const bool waits =
        entry->link->state() == LinkState::kConnecting && !entry->attached && !entry->connector && !entry->held;
    if (!waits) entry->waits_since = now;
    if (now - entry->waits_since >= kYieldPatience) connect_on_loop(*entry);
  }
}

void Endpoint::Impl::close_all_on_loop(const std::string& why) {
  if (!ended_) ended_ = Error(ErrorKind::kAborted, why);
  loop->cancel_timer_on_loop(ticker_);
  acceptor_->stop();
  for (Entry* entry : entries()) {
    entry->connector.reset();
    entry->rails.clear();
    entry->link->close_on_loop(*ended_);
  }
}

bool Endpoint::Impl::drained_on_loop() const {
  for (const Entry* entry : entries()) {
    if (entry->connector || !entry->link->drained_on_loop()) return false;
  }
  return true;
}

void Endpoint::Impl::shutdown(Deadline linger) {
  bool drained = true;
  loop->run_and_wait([&] {
    if (ended_) return;
    ended_ = Error(ErrorKind::kAborted, "this rank has shut its links down");
    acceptor_->stop();
    for (Entry* entry : entries()) {
      entry->rails.clear();
      // For the peer this link may already be up: it must learn that this end closes in good order.
      if (entry->connector && entry->connector->may_be_accepted()) continue;
      entry->connector.reset();
      if (entry->attached) {
        entry->link->begin_shutdown_on_loop();
      } else {
        entry->link->close_on_loop(*ended_);
      }
    }
    drained = drained_on_loop();
  });
  while (!drained && !linger.expired()) {
    std::this_thread::sleep_for(linger.remaining(kDrainCheck));
    loop->run_and_wait([&] { drained = drained_on_loop(); });
  }
  loop->run_and_wait([this] { close_all_on_loop("this rank has shut its links down"); });
}

void Endpoint::Impl::abort() noexcept {
  try {
    loop->run_and_wait([this] { close_all_on_loop("this rank has aborted its links"); });
  } catch (const std::exception&) {
    // The loop has stopped, so everything is closed.
  }
}

Endpoint::Endpoint(EndpointOptions options, LinkObserver& observer)
    : impl_(std::make_unique<Impl>(std::move(options), observer)) {}
Endpoint::~Endpoint() = default;
const PeerAddress& Endpoint::address() const noexcept { return impl_->self; }
const EndpointOptions& Endpoint::options() const noexcept { return impl_->options; }
Doorbell& Endpoint::doorbell() noexcept { return impl_->bell; }
Loop& Endpoint::loop() noexcept { return *impl_->loop; }
void Endpoint::set_key(std::vector<std::byte> key) { impl_->set_key(std::move(key)); }
Link& Endpoint::link(const PeerAddress& peer) { return impl_->link(peer); }
std::vector<Link*> Endpoint::links() const { return impl_->links(); }
void Endpoint::shutdown(Deadline linger) { impl_->shutdown(linger); }
void Endpoint::abort() noexcept { impl_->abort(); }

}  // namespace atl::transport
