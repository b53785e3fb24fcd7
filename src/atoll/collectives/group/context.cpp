// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/group/context.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

#include "atoll/collectives/control_message.h"
#include "atoll/collectives/group/context_impl.h"
#include "atoll/core/environment.h"
#include "atoll/core/fd.h"
#include "atoll/transport/stream/credentials.h"

namespace atl::collectives {
namespace {

constexpr std::size_t kMaxReports = 64;

template <class T>
void keep(std::deque<T>& list, T item) {
  if (list.size() == kMaxReports) list.pop_front();
  list.push_back(std::move(item));
}

void read_ports(transport::EndpointOptions& options) {
  const std::string value = environment("ATOLL_PORTS");
  if (value.empty()) return;
  const auto dash = value.find('-');
  const auto first = to_number<std::uint16_t>(std::string_view(value).substr(0, dash));
  const auto last =
      dash == std::string::npos ? first : to_number<std::uint16_t>(std::string_view(value).substr(dash + 1));
  if (!first || !last || *first == 0 || *first > *last)
    reject_setting("ATOLL_PORTS", value, "a port range such as 29600-29700");
  options.port_first = *first;
  options.port_last = *last;
}

void read_transport(transport::EndpointOptions& options) {
  using enum transport::TransportChoice;
  constexpr std::array kChoices{kAuto, kAuto, kShm, kTcp, kUcx};
  options.transport =
      kChoices.at(choice_setting("ATOLL_TRANSPORT", {"auto", "shm", "tcp", "ucx"}, "auto, shm, tcp or ucx"));
}

void read_heartbeat(transport::EndpointOptions& options) {
  const double seconds = number_setting("ATOLL_HEARTBEAT", 0.0, 0.1, 86400.0, "seconds between 0.1 and 86400");
  if (seconds > 0) options.heartbeat = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

void read_key(transport::EndpointOptions& options) {
  const std::string path = environment("ATOLL_KEY_FILE");
  if (path.empty()) return;
  try {
    options.key = transport::read_key_file(path);
  } catch (const Error& error) {
    reject_setting("ATOLL_KEY_FILE", path,
                   std::string("a file that only its owner may read, equal on all ranks; ") + error.what());
  }
}

// These are read only where they are used, which is too late to reject an invalid value.
void check_others() {
  choice_setting("ATOLL_SIMD", {"plain", "avx2", "avx512"}, "plain, avx2 or avx512");
  choice_setting("ATOLL_CHECK", {"1"}, "1, or nothing");
  choice_setting("ATOLL_TLS", {"1"}, "1, or nothing");
  choice_setting("ATOLL_LOG_LEVEL", {"debug", "info", "warning", "error", "off"}, "debug, info, warning, error or off");
  const std::string folder = environment("ATOLL_DUMP_DIR");
  std::error_code ignored;
  if (!folder.empty() && !std::filesystem::is_directory(folder, ignored))
    reject_setting("ATOLL_DUMP_DIR", folder, "an existing folder");
}

// A signal handler may touch little else than lock-free atomics and write(2).
constexpr int kSlots = 64;
constexpr int kFree = 0;  // a slot holds its descriptor plus kFirst, so that zero-initialised slots are free
constexpr int kReserved = 1;
constexpr int kFirst = 2;
std::array<std::atomic<int>, kSlots> g_event_fds;
// The process that owns the descriptor: in a child that inherited the table, the number may belong to any other file.
std::array<std::atomic<pid_t>, kSlots> g_processes;
std::array<Fd, kSlots> g_owners;

void on_signal(int) {
  const int saved = errno;
  const std::uint64_t one = 1;
  const pid_t process = getpid();
  for (int slot = 0; slot < kSlots; ++slot) {
    const int held = g_event_fds[slot].load(std::memory_order_acquire);
    if (held < kFirst || g_processes[slot].load(std::memory_order_relaxed) != process) continue;
    (void)!::write(held - kFirst, &one, sizeof one);
  }
  errno = saved;
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction current {};
    if (sigaction(SIGUSR1, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return;
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGUSR1, &action, nullptr);
  });
}

// Calls `dump` on `loop` whenever the process receives SIGUSR1. The signal handler is installed on first use, and only
// if the program has none of its own. Returns a slot for unwatch_dump_signal, or -1 if every slot is taken (nothing is
// watched then).
int watch_dump_signal(Loop& loop, std::function<void()> dump) {
  install_handler();
  for (int slot = 0; slot < kSlots; ++slot) {
    int expected = kFree;
    if (!g_event_fds[slot].compare_exchange_strong(expected, kReserved)) continue;
    const int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd < 0) {
      g_event_fds[slot].store(kFree);
      return -1;
    }
    g_owners[slot] = Fd(fd);
    loop.run_and_wait([&] {
      loop.add_fd_on_loop(fd, EPOLLIN, [fd, dump = std::move(dump)](std::uint32_t) {
        std::uint64_t count = 0;
        if (::read(fd, &count, sizeof count) > 0) dump();
      });
    });
    g_processes[slot].store(getpid());
    g_event_fds[slot].store(fd + kFirst);
    return slot;
  }
  return -1;
}

// Must not be called on the loop thread. When it returns, `dump` is not running and will not be called again.
void unwatch_dump_signal(Loop& loop, int slot) {
  if (slot < 0) return;
  const int fd = g_event_fds[slot].exchange(kReserved) - kFirst;
  loop.run_and_wait([&] { loop.remove_fd_on_loop(fd); });
  g_owners[slot].reset();
  g_event_fds[slot].store(kFree);
}

}  // namespace

Context::Impl::Impl(transport::EndpointOptions options) : process(fork_depth()), has_key(!options.key.empty()) {
  endpoint = std::make_unique<transport::Endpoint>(std::move(options), *this);
  dump_slot = watch_dump_signal(endpoint->loop(), [this] { dump_groups(); });
}

Context::Impl::~Impl() {
  // A forked child has no loop thread to stop; the endpoint handles this case itself.
  if (fork_depth() != process) return;
  unwatch_dump_signal(endpoint->loop(), dump_slot);
  endpoint->shutdown(Deadline::after(std::chrono::seconds(5)));
  endpoint.reset();
}

void Context::Impl::add_group(std::uint64_t group_id, std::weak_ptr<GroupSink> group) {
  std::vector<FailedLink> failed;
  std::vector<EarlyReport> early;
  {
    const std::lock_guard lock(mutex);
    groups[group_id] = group;
    failed = failed_links;
    for (const EarlyReport& report : early_reports) {
      if (report.group_id == group_id) early.push_back(report);
    }
  }
  if (failed.empty() && early.empty()) return;
  endpoint->loop().post([group = std::move(group), failed = std::move(failed), early = std::move(early)] {
    const auto live = group.lock();
    if (!live) return;
    for (const EarlyReport& report : early) live->on_control(*report.link, report.body);
    for (const FailedLink& link : failed) live->on_link_failed(link.peer, link.error, link.closed_in_order);
  });
}

void Context::Impl::remove_group(std::uint64_t group_id) {
  const std::lock_guard lock(mutex);
  groups.erase(group_id);
  ended_groups.insert(group_id);
}

void Context::Impl::set_key_once(const std::vector<std::byte>& key) {
  {
    const std::lock_guard lock(mutex);
    if (has_key) return;
    has_key = true;
  }
  // Without the lock, because set_key() waits for the loop, whose handlers take it.
  endpoint->set_key(key);
}

std::vector<std::shared_ptr<GroupSink>> Context::Impl::live_groups() {
  const std::lock_guard lock(mutex);
  std::vector<std::shared_ptr<GroupSink>> live;
  for (const auto& [id, group] : groups) {
    if (auto strong = group.lock()) live.push_back(std::move(strong));
  }
  return live;
}

void Context::Impl::keep_report(std::vector<std::byte> message) {
  const std::lock_guard lock(mutex);
  keep(reports, std::move(message));
}

void Context::Impl::on_link_open(transport::Link& link) {
  std::deque<std::vector<std::byte>> known;
  {
    const std::lock_guard lock(mutex);
    known = reports;
  }
  for (const auto& report : known) link.send_control(report);
}

void Context::Impl::on_control(transport::Link& link, std::span<const std::byte> message) {
  if (message.size() < kGroupIdBytes) return;
  std::uint64_t id = 0;
  std::memcpy(&id, message.data(), kGroupIdBytes);
  const auto body = message.subspan(kGroupIdBytes);
  std::shared_ptr<GroupSink> group;
  bool ended = false;
  {
    const std::lock_guard lock(mutex);
    const auto found = groups.find(id);
    if (found != groups.end()) group = found->second.lock();
    ended = ended_groups.count(id) > 0;
    if (!group && !ended && control_type(body) == ControlType::kError)
      keep(early_reports, {id, &link, {body.begin(), body.end()}});
  }
  if (group) {
    group->on_control(link, body);
  } else if (ended && control_type(body) == ControlType::kInquiry) {
    link.send_control_after_frames(encode(id, ControlType::kLeft, Report{ErrorKind::kAborted, -1, "left"}));
  }
}

void Context::Impl::on_link_failed(transport::Link& link, const Error& error, bool closed_in_order) {
  {
    const std::lock_guard lock(mutex);
    failed_links.push_back({link.peer(), error, closed_in_order});
  }
  for (const auto& group : live_groups()) group->on_link_failed(link.peer(), error, closed_in_order);
}

void Context::Impl::dump_groups() {
  for (const auto& group : live_groups()) group->on_dump_requested();
}

FoldThreads& Context::Impl::fold_threads(std::size_t count) {
  const std::lock_guard lock(mutex);
  if (!folding) folding = std::make_unique<FoldThreads>(count);
  return *folding;
}

Context::Context(transport::EndpointOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Context::~Context() = default;
transport::Endpoint& Context::endpoint() noexcept { return *impl_->endpoint; }

bool key_comes_from_file() { return !environment("ATOLL_KEY_FILE").empty(); }

transport::EndpointOptions Context::options_from_environment() {
  transport::EndpointOptions options;
  options.host = environment("ATOLL_HOST");
  options.interface = environment("ATOLL_IFACE");
  options.rails = environment("ATOLL_RAILS");
  options.advertised_address = environment("ATOLL_ADDRESS");
  options.route_hint = environment("MASTER_ADDR");
  read_ports(options);
  read_transport(options);
  read_heartbeat(options);
  check_others();
  read_key(options);
  options.tls = !environment("ATOLL_TLS").empty();
  return options;
}

}  // namespace atl::collectives
