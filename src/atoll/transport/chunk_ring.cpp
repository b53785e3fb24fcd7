// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/chunk_ring.h"

#include <algorithm>
#include <string>
#include <utility>

#include "atoll/core/log.h"

namespace atl::transport {

std::shared_ptr<ChunkRing> ChunkRing::make(DirectPort& port, std::shared_ptr<RingMemory> memory, Direction direction,
                                           std::size_t chunk_bytes) {
  const std::size_t bytes = memory->buffer().bytes;
  if (chunk_bytes == 0 || bytes < chunk_bytes) {
    throw Error(ErrorKind::kInvalidArgument, "invalid chunk size ", chunk_bytes, " for a ring of ", bytes, " bytes");
  }
  std::shared_ptr<ChunkRing> ring(new ChunkRing(port, std::move(memory), direction, chunk_bytes));
  port.remember(ring->memory_->buffer());
  ring->is_known_ = true;
  return ring;
}

ChunkRing::ChunkRing(DirectPort& port, std::shared_ptr<RingMemory> memory, Direction direction, std::size_t chunk_bytes)
    : port_(port),
      memory_(std::move(memory)),
      direction_(direction),
      chunk_bytes_(chunk_bytes),
      slots_(memory_->buffer().bytes / chunk_bytes) {}

ChunkRing::~ChunkRing() {
  if (is_known_) forget();
}

void ChunkRing::forget() noexcept {
  try {
    port_.forget(memory_->buffer());
  } catch (const Error& error) {
    log(LogLevel::kDebug, std::string("a chunk ring outlived its link: ") + error.what());
  }
}

void ChunkRing::pass(std::uint64_t number, const DirectBuffer& buffer, DirectPort::Done done) {
  auto message = std::make_shared<Message>(Message{.number = number, .buffer = buffer, .done = std::move(done)});
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_) {
      message->problem = abandoned_;
      report_once(message);
    } else {
      waiting_.push_back(std::move(message));
    }
    if (std::exchange(is_pumping_, true)) return;
  }
  pump();
}

void ChunkRing::abandon(const Error& why) {
  const auto self = shared_from_this();
  bool is_last = false;
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_) return;
    abandoned_ = why;
    const auto end = [&](const std::shared_ptr<Message>& message) {
      if (!message->problem) message->problem = why;
      message->is_started = true;
      if (message->copies == 0) report_once(message);
    };
    for (const Slot& slot : slots_) {
      if (slot.message) end(slot.message);
    }
    for (const auto& message : waiting_) end(message);
    waiting_.clear();
    is_last = at_port_ == 0 && std::exchange(is_known_, false);
  }
  memory_->give_up();
  if (is_last) forget();
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_pumping_, true)) return;
  }
  pump();
}

/// Starts every step that can start. Run by one thread at a time, the one that set is_pumping_, so that steps start in
/// order. It alone calls `done`, because the last call may destroy the ring.
void ChunkRing::pump() {
  const auto self = shared_from_this();
  for (std::optional<Step> step = Step{}; step;) {
    std::vector<std::shared_ptr<Message>> finished;
    step = next_step(finished);
    if (step) begin_step(step->slot, step->is_second);
    for (const auto& each : finished) each->done(each->problem ? &*each->problem : nullptr);
  }
}

/// Returns the step to start next, or none, which ends the pumping; and the messages whose `done` is to be called.
std::optional<ChunkRing::Step> ChunkRing::next_step(std::vector<std::shared_ptr<Message>>& finished) {
  const std::lock_guard lock(mutex_);
  finished.swap(finished_);
  if (slots_[second_at_].state == State::kBetween) {
    slots_[second_at_].state = State::kSecond;
    ++under_way(*slots_[second_at_].message, true);
    return Step{std::exchange(second_at_, (second_at_ + 1) % slots_.size()), true};
  }
  if (waiting_.empty() || slots_[first_at_].state != State::kFree) {
    is_pumping_ = false;
    return std::nullopt;
  }
  Slot& next = slots_[first_at_];
  Message& message = *waiting_.front();
  next.state = State::kFirst;
  next.message = waiting_.front();
  next.offset = message.started;
  next.bytes = std::min(chunk_bytes_, message.buffer.bytes - message.started);
  message.started += next.bytes;
  ++message.under_way;
  message.is_started = message.started == message.buffer.bytes;
  if (message.is_started) waiting_.pop_front();
  ++under_way(message, false);
  return Step{std::exchange(first_at_, (first_at_ + 1) % slots_.size()), false};
}

/// Counts the steps under way of that kind: the message's copies, or those of the network.
std::size_t& ChunkRing::under_way(Message& message, bool is_second) noexcept {
  return copies(is_second) ? message.copies : at_port_;
}

void ChunkRing::begin_step(std::size_t index, bool is_second) {
  // No thread changes a slot while one of its steps is under way, but another slot may set the message's problem.
  const Slot& slot = slots_[index];
  auto ended = [self = shared_from_this(), index, is_second](const Error* problem) {
    self->end_step(index, is_second, problem);
  };
  const DirectBuffer memory = memory_->buffer();
  void* const chunk = static_cast<std::byte*>(memory.data) + index * chunk_bytes_;
  const bool sends = direction_ == Direction::kSend;
  std::optional<Error> problem;
  {
    const std::lock_guard lock(mutex_);
    problem = slot.message->problem;
  }
  if (problem) return ended(&*problem);
  try {
    if (copies(is_second)) {
      std::byte* const user = static_cast<std::byte*>(slot.message->buffer.data) + slot.offset;
      return memory_->copy(sends ? chunk : user, sends ? user : chunk, slot.bytes, ended);
    }
    const DirectBuffer part{chunk, slot.bytes, memory.kind};
    sends ? port_.send(slot.message->number, part, ended) : port_.receive(slot.message->number, part, ended);
  } catch (const Error& error) {
    ended(&error);
  }
}

void ChunkRing::end_step(std::size_t index, bool is_second, const Error* problem) {
  bool is_last = false;
  bool is_mine = false;  // the pumping
  {
    const std::lock_guard lock(mutex_);
    Slot& slot = slots_[index];
    const auto message = slot.message;
    if (problem != nullptr && !message->problem) {
      message->problem = *problem;
      if (!message->is_started) std::erase(waiting_, message);
      message->is_started = true;
    }
    --under_way(*message, is_second);
    slot.state = is_second ? State::kFree : State::kBetween;
    if (is_second) {
      --message->under_way;
      slot.message.reset();
    }
    const bool is_done = abandoned_ ? message->copies == 0 : message->is_started && message->under_way == 0;
    if (is_done) report_once(message);
    is_last = abandoned_ && at_port_ == 0 && std::exchange(is_known_, false);
    is_mine = !std::exchange(is_pumping_, true);
  }
  if (is_last) forget();
  if (is_mine) pump();
}

/// Under the lock.
void ChunkRing::report_once(const std::shared_ptr<Message>& message) {
  if (!std::exchange(message->is_reported, true)) finished_.push_back(message);
}

}  // namespace atl::transport
