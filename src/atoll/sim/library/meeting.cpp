// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/library/meeting.h"

#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "atoll/core/bytes.h"
#include "atoll/sim/library/socket.h"

namespace atl::sim {
namespace {

using Cookie = std::array<std::byte, 16>;
constexpr std::uint32_t kMagic = 0x51CC1001;  // the low digits change with the format of messages and shared memory
constexpr std::chrono::hours kMaxMeetingWait{24};

/// The first message on a connection; rank 0's carries the shared memory.
struct Hello {
  std::uint32_t magic = kMagic;
  std::int32_t rank = -1;
  std::int32_t process = -1;
  Cookie cookie{};  // of the receiving rank, from the store
};

Cookie random_cookie() {
  Cookie cookie{};
  if (::getrandom(cookie.data(), cookie.size(), 0) != static_cast<ssize_t>(cookie.size())) {
    throw Error(ErrorKind::kUnavailable, with_errno("simccl: the system returned no random bytes", errno));
  }
  return cookie;
}

std::string name_of(const Cookie& id) { return "atoll-simccl-" + hex(id); }

std::string key_of(int rank) { return "rank/" + std::to_string(rank); }

class Host {
 public:
  Host(Store& store, int rank, int size, Deadline deadline)
      : store_(store), rank_(rank), size_(size), deadline_(deadline), id_(random_cookie()), cookie_(random_cookie()) {
    meeting_.peers.resize(static_cast<std::size_t>(size));
  }

  Meeting run() {
    if (rank_ == 0) meeting_.control = std::make_unique<Control>(size_);
    listener_ = listen_at(name_of(id_), size_ + 16);
    std::vector<std::byte> entry(id_.begin(), id_.end());
    entry.insert(entry.end(), cookie_.begin(), cookie_.end());
    store_.set(key_of(rank_), entry);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) greet(peer);
    }
    while (!missing().empty()) wait_for_event();
    return std::move(meeting_);
  }

 private:
  void greet(int peer) {
    std::vector<std::byte> entry;
    try {
      entry = store_.get(key_of(peer), deadline_);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kTimeout) throw;
      throw Error(ErrorKind::kTimeout, "simccl: rank " + std::to_string(rank_) + " timed out waiting for rank " +
                                           std::to_string(peer) + " to join the group");
    }
    Hello hello;
    Cookie id{};
    if (entry.size() != id.size() + hello.cookie.size()) {
      throw Error(ErrorKind::kProtocol, "simccl: the store holds " + std::to_string(entry.size()) + " bytes under \"" +
                                            key_of(peer) + "\" instead of 32");
    }
    std::memcpy(id.data(), entry.data(), id.size());
    std::memcpy(hello.cookie.data(), entry.data() + id.size(), hello.cookie.size());
    hello.rank = rank_;
    hello.process = ::getpid();
    Fd connection = connect_to(name_of(id));
    if (!connection) {
      throw Error(ErrorKind::kUnavailable, "simccl: rank " + std::to_string(peer) + " cannot be reached from rank " +
                                               std::to_string(rank_) +
                                               ": it has gone, or runs on another host or in another network "
                                               "namespace; the ranks of a simccl group must share one");
    }
    send_message(connection, std::as_bytes(std::span(&hello, 1)), rank_ == 0 ? meeting_.control->memory().get() : -1);
    meeting_.peers[static_cast<std::size_t>(peer)].outgoing = std::move(connection);
  }

  int outgoing(int peer) const { return meeting_.peers[static_cast<std::size_t>(peer)].outgoing.get(); }

  bool is_missing(int peer) const { return peer != rank_ && !meeting_.peers[static_cast<std::size_t>(peer)].incoming; }

  std::string missing() const {
    std::string names;
    for (int peer = 0; peer < size_; ++peer) {
      if (!is_missing(peer)) continue;
      names += (names.empty() ? "" : ", ") + std::to_string(peer);
    }
    return names;
  }

  void wait_for_event() {
    std::vector<pollfd> watched{{listener_.get(), POLLIN, 0}};
    for (const Fd& each : unidentified_) watched.push_back({each.get(), POLLIN, 0});
    const std::size_t first_peer = watched.size();
    for (int peer = 0; peer < size_; ++peer) {
      if (is_missing(peer)) watched.push_back({outgoing(peer), 0, 0});  // 0: polls only for its end
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_.remaining(kMaxMeetingWait));
    ::poll(watched.data(), watched.size(), static_cast<int>(left.count()));
    if (deadline_.expired()) {
      throw Error(ErrorKind::kTimeout, "simccl: rank " + std::to_string(rank_) +
                                           " timed out waiting for these ranks to join the group: " + missing());
    }
    receive_greetings();
    for (std::size_t i = first_peer; i < watched.size(); ++i) {
      if (watched[i].revents != 0) require_greeted(watched[i].fd);
    }
  }

  void receive_greetings() {
    while (Fd connection = accept_from(listener_)) unidentified_.push_back(std::move(connection));
    std::vector<Fd> still;
    for (Fd& each : unidentified_) {
      if (!is_introduced(each)) still.push_back(std::move(each));
    }
    unidentified_.swap(still);
  }

  // A peer may leave after it has greeted this rank; one that leaves before never will greet it.
  void require_greeted(int fd) {
    for (int peer = 0; peer < size_; ++peer) {
      if (!is_missing(peer) || outgoing(peer) != fd) continue;
      throw Error(ErrorKind::kPeerLost, "simccl: rank " + std::to_string(peer) +
                                            " has given up before it joined rank " + std::to_string(rank_) +
                                            " in the group");
    }
  }

  // Returns whether `connection` has sent its greeting; a peer's becomes its incoming one, any other is closed.
  bool is_introduced(Fd& connection) {
    Hello hello;
    Received received = receive_message(connection, std::as_writable_bytes(std::span(&hello, 1)));
    if (received.kind == Received::Kind::kNothing) return false;
    const bool known = received.bytes == sizeof(hello) && hello.magic == kMagic && hello.cookie == cookie_ &&
                       hello.rank >= 0 && hello.rank < size_ && hello.rank != rank_;
    if (!known) {
      connection.reset();
      return true;
    }
    auto& peer = meeting_.peers[static_cast<std::size_t>(hello.rank)];
    peer.process = hello.process;
    peer.incoming = std::move(connection);
    if (hello.rank == 0) meeting_.control = std::make_unique<Control>(size_, std::move(received.memory));
    return true;
  }

  Store& store_;
  const int rank_;
  const int size_;
  const Deadline deadline_;
  const Cookie id_;      // in the socket's name
  const Cookie cookie_;  // shows that a caller has read the store
  Fd listener_;
  std::vector<Fd> unidentified_;
  Meeting meeting_;
};

}  // namespace

Meeting meet(Store& store, int rank, int size, Deadline deadline) { return Host(store, rank, size, deadline).run(); }

}  // namespace atl::sim
