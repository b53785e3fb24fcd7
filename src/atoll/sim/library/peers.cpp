// SPDX-License-Identifier: Apache-2.0
#include "atoll/sim/library/peers.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "atoll/sim/library/socket.h"

namespace atl::sim {
namespace {

/// Sent together with the memory of one device.
struct Announcement {
  std::int32_t device = -1;
};

}  // namespace

/// Another process's device memory.
struct Peers::Arena {
  explicit Arena(const Fd& memory) {
    struct stat status {};
    if (::fstat(memory.get(), &status) != 0) {
      throw Error(ErrorKind::kProtocol, with_errno("simccl: the memory of a device came without a descriptor", errno));
    }
    bytes = static_cast<std::size_t>(status.st_size);
    void* const at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, memory.get(), 0);
    if (at == MAP_FAILED) {
      throw Error(
          ErrorKind::kUnavailable,
          with_errno("simccl: cannot map another rank's device of " + std::to_string(bytes >> 20) + " MiB", errno));
    }
    ::madvise(at, bytes, MADV_DONTFORK);
    base = static_cast<const std::byte*>(at);
  }
  ~Arena() { ::munmap(const_cast<std::byte*>(base), bytes); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  const std::byte* base = nullptr;
  std::size_t bytes = 0;
};

Peers::Peers(Meeting meeting, int rank)
    : rank_(rank),
      control_(std::move(meeting.control)),
      peers_(std::move(meeting.peers)),
      stop_(::eventfd(0, EFD_CLOEXEC)),
      arenas_(peers_.size()) {
  if (!stop_) throw Error(ErrorKind::kUnavailable, with_errno("simccl: cannot make an event descriptor", errno));
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "atoll-simccl");
    serve();
  });
}

Peers::~Peers() {
  leave();
  for (auto& row : arenas_) {
    for (auto& arena : row) delete arena.load();
  }
}

void Peers::leave() {
  {
    const std::lock_guard lock(mutex_);
    if (left_) return;
    left_ = true;
  }
  control_->leave(rank_);
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof(one));
  thread_.join();
  const std::lock_guard lock(mutex_);
  for (auto& peer : peers_) peer = {};
}

void Peers::announce(int device, const DeviceMemory& memory) {
  const std::lock_guard lock(mutex_);
  bool& known = announced_.at(static_cast<std::size_t>(device));
  if (known || left_) return;
  const Announcement message{device};
  for (const auto& peer : peers_) {
    // The thread detects a peer that is gone.
    if (peer.outgoing) send_message(peer.outgoing, std::as_bytes(std::span(&message, 1)), memory.descriptor());
  }
  known = true;
}

bool Peers::knows(int rank, int device) const noexcept {
  if (device < 0 || device >= kMaxArenas) return true;  // at() reports it
  const auto& row = arenas_[static_cast<std::size_t>(rank)];
  return row[static_cast<std::size_t>(device)].load(std::memory_order_acquire) != nullptr;
}

const std::byte* Peers::at(int rank, const Region& region) const {
  const Arena* arena = nullptr;
  if (region.device >= 0 && region.device < kMaxArenas) {
    arena = arenas_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(region.device)].load(
        std::memory_order_acquire);
  }
  if (arena == nullptr || region.offset > arena->bytes || region.bytes > arena->bytes - region.offset) {
    throw Error(ErrorKind::kProtocol, "simccl: rank " + std::to_string(rank) + " named " +
                                          std::to_string(region.bytes) + " bytes at " + std::to_string(region.offset) +
                                          " of its device " + std::to_string(region.device) + ", which do not exist");
  }
  return arena->base + region.offset;
}

void Peers::serve() {
  while (true) {
    std::vector<pollfd> watched{{stop_.get(), POLLIN, 0}};
    std::vector<int> ranks{rank_};
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
      if (!peers_[rank].incoming) continue;
      watched.push_back({peers_[rank].incoming.get(), POLLIN, 0});
      ranks.push_back(static_cast<int>(rank));
    }
    if (::poll(watched.data(), watched.size(), -1) < 0) continue;
    if (watched[0].revents != 0) return;
    for (std::size_t i = 1; i < watched.size(); ++i) {
      if (watched[i].revents == 0) continue;
      try {
        receive(ranks[i]);
      } catch (const Error& error) {
        control_->fail(error.kind(), "on rank " + std::to_string(rank_) + ": " + error.what());
        return;
      }
    }
  }
}

void Peers::receive(int rank) {
  auto& peer = peers_[static_cast<std::size_t>(rank)];
  Announcement message;
  Received received = receive_message(peer.incoming, std::as_writable_bytes(std::span(&message, 1)));
  if (received.kind == Received::Kind::kNothing) return;
  if (received.kind == Received::Kind::kEnd) {
    peer.incoming.reset();
    if (!control_->has_left(rank)) {
      control_->fail(ErrorKind::kPeerLost,
                     "rank " + std::to_string(rank) + " (process " + std::to_string(peer.process) + ") died");
    }
    return;
  }
  if (received.bytes != sizeof(message) || message.device < 0 || message.device >= kMaxArenas) {
    throw Error(ErrorKind::kProtocol, "simccl: rank " + std::to_string(rank) + " sent an invalid message");
  }
  auto& place = arenas_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(message.device)];
  if (place.load() == nullptr) place.store(new Arena(received.memory), std::memory_order_release);
  control_->ring();
}

}  // namespace atl::sim
