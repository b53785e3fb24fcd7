// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>

#include "atoll/core/deadline.h"
#include "atoll/core/fd.h"
#include "atoll/core/loop.h"
#include "atoll/infer/link/payload_ring.h"
#include "atoll/transport/address.h"

// How a robot on the server's own host gets the memory of its model's payloads: an Offer in their encrypted connection
// names a Unix socket, which no other host can reach, and a ticket, which nobody else knows.
namespace atl::infer {

using DoorName = std::array<std::byte, 16>;
using Ticket = std::array<std::byte, 16>;

/// The address of the door's Unix socket.
transport::SocketAddress address_of(const DoorName& door);

/// The server's end. All on its loop.
class MemoryDoor {
 public:
  /// Memory for a client: of the payloads that it sends, from `head` on, and of those that it gets.
  struct Memories {
    Fd sends;
    std::uint64_t head = 0;
    Fd gets;
  };

  explicit MemoryDoor(Loop& loop);
  ~MemoryDoor();
  MemoryDoor(const MemoryDoor&) = delete;
  MemoryDoor& operator=(const MemoryDoor&) = delete;

  const DoorName& name() const noexcept { return name_; }
  /// Gives the memories to the first one that shows the ticket that this returns. Opens the door. Throws
  /// Error(kUnavailable) if the system has no socket.
  Ticket offer(Memories memories);
  /// Ends an offer; nothing if it has been taken.
  void withdraw(const Ticket& ticket) noexcept;
  /// Closes connections that show no ticket for long.
  void on_tick(Clock::time_point now);

 private:
  struct Visitor {
    Fd socket;
    Clock::time_point since{};
  };
  void open();
  void accept();
  void serve(std::list<Visitor>::iterator visitor);
  void leave(std::list<Visitor>::iterator visitor) noexcept;

  Loop& loop_;
  DoorName name_{};
  Fd listener_;
  bool is_exhausted_ = false;  // no descriptor was left for a visitor
  std::list<Visitor> visitors_;
  std::map<Ticket, Memories> offers_;
};

/// The client's end: fetches what an Offer promises. On its loop.
class MemoryFetch {
 public:
  /// Called at most once, on the loop, with the mapped memory; null if there is none, as on another host. The fetch
  /// may be destroyed inside.
  using Done = std::function<void(std::shared_ptr<PayloadEnds> ends)>;

  MemoryFetch(Loop& loop, const DoorName& door, const Ticket& ticket, Done done);
  ~MemoryFetch();
  MemoryFetch(const MemoryFetch&) = delete;
  MemoryFetch& operator=(const MemoryFetch&) = delete;

 private:
  void read();
  void end(std::shared_ptr<PayloadEnds> ends);

  Loop& loop_;
  Fd socket_;
  Done done_;
};

}  // namespace atl::infer
