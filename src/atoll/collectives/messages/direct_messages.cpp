// SPDX-License-Identifier: Apache-2.0
#include "atoll/collectives/messages/direct_messages.h"

#include <string>
#include <utility>
#include <vector>

#include "atoll/core/copy.h"

namespace atl::collectives {
namespace {

using transport::ChunkRing;
using transport::DirectBuffer;
using transport::MemoryKind;

// A chunk is large enough to reach a network's rate by itself, and a ring deep enough to copy beside that.
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

void Flight::end(const Error* problem) {
  std::function<void()> tell;
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    if (problem != nullptr) problem_ = *problem;
    tell.swap(tell_);
  }
  if (tell) tell();
}

bool Flight::is_over() const {
  const std::lock_guard lock(mutex_);
  return is_over_;
}

std::optional<Error> Flight::problem() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

bool Flight::hand_over(std::function<void()> tell) {
  const std::lock_guard lock(mutex_);
  if (is_over_) return false;
  tell_ = std::move(tell);
  return true;
}

DirectMessages::~DirectMessages() {
  abandon(Error(ErrorKind::kAborted, "the group is gone"));
  std::unique_lock lock(mutex_);
  landed_.wait(lock, [this] { return in_air_ == 0; });
}

void DirectMessages::add(Passage passage) {
  const std::lock_guard lock(mutex_);
  ++in_air_;
  waiting_.push_back(std::move(passage));
}

void DirectMessages::go_on() {
  for (;;) {
    std::optional<Passage> next;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty() || is_beginning_) return;
      is_beginning_ = true;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    begin(*next);
    const std::lock_guard lock(mutex_);
    is_beginning_ = false;
  }
}

void DirectMessages::begin(const Passage& passage) {
  const auto& flight = passage.flight;
  try {
    const auto through = ring(passage);
    std::byte* const data = passage.landing ? passage.landing->on_device() : passage.data;
    // The ring may last longer than this, but ends its messages first.
    through->pass(passage.number, {data, static_cast<std::size_t>(passage.bytes), MemoryKind::kHost},
                  [this, flight](const Error* problem) { end(*flight, problem); });
  } catch (const Error& error) {
    end(*flight, &error);
  } catch (const std::exception& error) {  // the device's
    const Error problem(ErrorKind::kUnavailable, std::string("the device: ") + error.what());
    end(*flight, &problem);
  }
}

std::shared_ptr<ChunkRing> DirectMessages::ring(const Passage& passage) {
  const Key key{passage.peer, passage.direction, passage.device};
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_) throw Error(*abandoned_);
    const auto found = rings_.find(key);
    if (found != rings_.end()) return found->second;
  }
  constexpr std::size_t kBytes = kChunks * kChunkBytes;
  auto memory = passage.device ? passage.device->new_ring(*passage.port, kBytes) : std::make_shared<HostRing>(kBytes);
  auto made = ChunkRing::make(*passage.port, std::move(memory), passage.direction, kChunkBytes);
  const std::lock_guard lock(mutex_);
  if (abandoned_) throw Error(*abandoned_);
  rings_[key] = made;
  return made;
}

void DirectMessages::end(Flight& flight, const Error* problem) {
  flight.end(problem);
  ended_();
  const std::lock_guard lock(mutex_);
  if (--in_air_ == 0) landed_.notify_all();
}

void DirectMessages::abandon(const Error& why) {
  std::map<Key, std::shared_ptr<ChunkRing>> rings;
  {
    const std::lock_guard lock(mutex_);
    if (!abandoned_) abandoned_ = why;
    rings = rings_;
  }
  for (const auto& [key, ring] : rings) ring->abandon(why);
  go_on();
}

}  // namespace atl::collectives
