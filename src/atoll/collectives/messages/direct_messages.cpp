// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/messages/direct_messages.h"

#include <string>
#include <utility>

#include "atoll/core/copy.h"

namespace atl::collectives {
namespace {

using transport::ChunkRing;
using transport::DirectBuffer;
using transport::MemoryKind;

// A chunk is large enough to reach a network's rate by itself, and a ring is deep enough to copy one chunk while
// another is on the network.
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
constexpr std::size_t kChunks = 4;

class HostRing final : public transport::RingMemory {
 public:
  explicit HostRing(std::size_t bytes) : memory_(new std::byte[bytes]), bytes_(bytes) {}
  DirectBuffer buffer() const noexcept override { return {memory_.get(), bytes_, MemoryKind::kHost}; }
  void copy(void* to, const void* from, std::size_t bytes, Copied copied) override {
    copy_bytes(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
    copied(nullptr);
  }
  void give_up() noexcept override {}

 private:
  const std::unique_ptr<std::byte[]> memory_;
  const std::size_t bytes_;
};

}  // namespace

DirectMessages::~DirectMessages() {
  abandon(Error(ErrorKind::kAborted, "the group was destroyed"));
  std::unique_lock lock(mutex_);
  all_ended_.wait(lock, [this] { return running_ == 0; });
}

void DirectMessages::add(Transfer transfer) {
  const std::lock_guard lock(mutex_);
  ++running_;
  waiting_.push_back(std::move(transfer));
}

void DirectMessages::start_queued() {
  for (;;) {
    std::optional<Transfer> next;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty() || is_starting_) return;
      is_starting_ = true;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    start(*next);
    const std::lock_guard lock(mutex_);
    is_starting_ = false;
  }
}

void DirectMessages::start(const Transfer& transfer) {
  const auto& status = transfer.status;
  try {
    const auto through = ring(transfer);
    std::byte* const data = transfer.landing ? transfer.landing->on_device() : transfer.data;
    // The ring may outlive this object, but its messages end first.
    through->pass(transfer.number, {data, static_cast<std::size_t>(transfer.bytes), MemoryKind::kHost},
                  [this, status](const Error* problem) { end(*status, problem); });
  } catch (const Error& error) {
    end(*status, &error);
  } catch (const std::exception& error) {  // from the device
    const Error problem(ErrorKind::kUnavailable, std::string("the device: ") + error.what());
    end(*status, &problem);
  }
}

std::shared_ptr<ChunkRing> DirectMessages::ring(const Transfer& transfer) {
  const Key key{transfer.peer, transfer.direction, transfer.device};
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_) throw Error(*abandoned_);
    const auto found = rings_.find(key);
    if (found != rings_.end()) return found->second;
  }
  constexpr std::size_t kBytes = kChunks * kChunkBytes;
  auto memory =
      transfer.device ? transfer.device->new_ring(*transfer.port, kBytes) : std::make_shared<HostRing>(kBytes);
  auto made = ChunkRing::make(*transfer.port, std::move(memory), transfer.direction, kChunkBytes);
  const std::lock_guard lock(mutex_);
  if (abandoned_) throw Error(*abandoned_);
  rings_[key] = made;
  return made;
}

void DirectMessages::end(TransferStatus& status, const Error* problem) {
  status.end(problem);
  ended_();
  const std::lock_guard lock(mutex_);
  if (--running_ == 0) all_ended_.notify_all();
}

void DirectMessages::abandon(const Error& why) {
  std::map<Key, std::shared_ptr<ChunkRing>> rings;
  {
    const std::lock_guard lock(mutex_);
    if (!abandoned_) abandoned_ = why;
    rings = rings_;
  }
  for (const auto& [key, ring] : rings) ring->abandon(why);
  start_queued();
}

}  // namespace atl::collectives
