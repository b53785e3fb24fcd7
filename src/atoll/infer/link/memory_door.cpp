// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/link/memory_door.h"

#include <sys/epoll.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/core/log.h"
#include "atoll/transport/auth.h"
#include "atoll/transport/shared_memory.h"

namespace atl::infer {
namespace {

constexpr std::size_t kMaxVisitors = 16;
constexpr std::chrono::seconds kMaxVisit{1};

}  // namespace

transport::SocketAddress address_of(const DoorName& door) {
  return transport::abstract_unix_address("atoll-memory-" + hex(door));
}

MemoryDoor::MemoryDoor(Loop& loop) : loop_(loop) { transport::fill_random(name_); }

MemoryDoor::~MemoryDoor() {
  while (!visitors_.empty()) leave(visitors_.begin());
  if (listener_) loop_.remove_fd_on_loop(listener_.get());
}

void MemoryDoor::open() {
  Fd listener = transport::try_listen(address_of(name_));
  if (!listener) throw Error(ErrorKind::kUnavailable, with_errno("cannot listen on a Unix socket", errno));
  loop_.add_fd_on_loop(listener.get(), EPOLLIN, [this](std::uint32_t) { accept(); });
  listener_ = std::move(listener);
}

Ticket MemoryDoor::offer(Memories memories) {
  if (!listener_) open();
  Ticket ticket;
  transport::fill_random(ticket);
  offers_.emplace(ticket, std::move(memories));
  return ticket;
}

void MemoryDoor::withdraw(const Ticket& ticket) noexcept { offers_.erase(ticket); }

// A visitor beyond the limit is turned away: its robot sends as if it were on another host.
void MemoryDoor::accept() {
  Fd socket = transport::accept_from(listener_.get());
  if (!socket && transport::lacks_resources(errno)) {
    is_exhausted_ = true;  // until the next tick
    loop_.modify_fd_on_loop(listener_.get(), 0);
  }
  if (!socket || visitors_.size() >= kMaxVisitors) return;
  const int descriptor = socket.get();
  visitors_.push_front({std::move(socket), Clock::now()});
  loop_.add_fd_on_loop(descriptor, EPOLLIN, [this, visitor = visitors_.begin()](std::uint32_t) { serve(visitor); });
}

void MemoryDoor::serve(std::list<Visitor>::iterator visitor) {
  try {
    const auto shown = transport::receive_descriptors(visitor->socket.get(), sizeof(Ticket));
    if (!shown) return;
    Ticket ticket;
    std::memcpy(ticket.data(), shown->bytes.data(), ticket.size());
    if (const auto found = offers_.extract(ticket)) {
      const Memories& memories = found.mapped();
      std::array<std::byte, sizeof memories.head> head;
      std::memcpy(head.data(), &memories.head, head.size());
      const std::array descriptors{memories.sends.get(), memories.gets.get()};
      transport::send_descriptors(visitor->socket.get(), head, descriptors);
    }
  } catch (const Error& error) {
    log(LogLevel::kDebug, std::string("serve: at the door for memory: ") + error.what());
  }
  leave(visitor);
}

void MemoryDoor::leave(std::list<Visitor>::iterator visitor) noexcept {
  loop_.remove_fd_on_loop(visitor->socket.get());
  visitors_.erase(visitor);
}

void MemoryDoor::on_tick(Clock::time_point now) {
  if (std::exchange(is_exhausted_, false)) loop_.modify_fd_on_loop(listener_.get(), EPOLLIN);
  for (auto visitor = visitors_.begin(); visitor != visitors_.end();) {
    const auto each = visitor++;
    if (now - each->since > kMaxVisit) leave(each);
  }
}

MemoryFetch::MemoryFetch(Loop& loop, const DoorName& door, const Ticket& ticket, Done done)
    : loop_(loop), socket_(transport::open_socket(AF_UNIX)), done_(std::move(done)) {
  // A Unix socket connects at once or not at all.
  if (!socket_ || transport::start_connecting(socket_.get(), address_of(door)) != 0 ||
      !transport::send_descriptors(socket_.get(), ticket, {})) {
    socket_.reset();
    return;
  }
  loop_.add_fd_on_loop(socket_.get(), EPOLLIN, [this](std::uint32_t) { read(); });
}

MemoryFetch::~MemoryFetch() {
  if (socket_) loop_.remove_fd_on_loop(socket_.get());
}

void MemoryFetch::read() {
  std::shared_ptr<PayloadEnds> ends;
  try {
    const auto got = transport::receive_descriptors(socket_.get(), sizeof(std::uint64_t));
    if (!got) return;
    std::uint64_t head = 0;
    std::memcpy(&head, got->bytes.data(), sizeof head);
    if (got->descriptors.size() == 2) {
      ends = std::make_shared<PayloadEnds>(
          PayloadEnds{PayloadReader(got->descriptors[1]), PayloadWriter(got->descriptors[0], head)});
    }
  } catch (const Error& error) {
    log(LogLevel::kInfo, std::string("no memory is shared with the server: ") + error.what());
  }
  end(std::move(ends));
}

void MemoryFetch::end(std::shared_ptr<PayloadEnds> ends) {
  loop_.remove_fd_on_loop(socket_.get());
  socket_.reset();
  const Done done = std::move(done_);
  done(std::move(ends));
}

}  // namespace atl::infer
