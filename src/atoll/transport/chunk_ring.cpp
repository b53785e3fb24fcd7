// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/chunk_ring.h"

#include <algorithm>
#include <string>
#include <utility>

#include "atoll/core/log.h"

namespace atl::transport {

ChunkRing::ChunkRing(DirectPort& port, MemoryCopier& copier, Direction direction, const DirectBuffer& memory,
                     std::size_t chunk_bytes)
    : port_(port), copier_(copier), direction_(direction), memory_(memory), chunk_bytes_(chunk_bytes) {
  if (chunk_bytes == 0 || memory.bytes < chunk_bytes) {
    throw Error(ErrorKind::kInvalidArgument,
                "a ring of " + std::to_string(memory.bytes) + " bytes in chunks of " + std::to_string(chunk_bytes));
  }
  slots_.resize(memory.bytes / chunk_bytes);
  port_.remember(memory_);
}

ChunkRing::~ChunkRing() {
  try {
    port_.forget(memory_);
  } catch (const Error& error) {
    log(LogLevel::kDebug, std::string("a chunk ring outlived its link: ") + error.what());
  }
}

void ChunkRing::pass(std::uint64_t number, const DirectBuffer& buffer, DirectPort::Done done) {
  auto message = std::make_shared<Message>();
  message->number = number;
  message->buffer = buffer;
  message->done = std::move(done);
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(message));
    if (std::exchange(is_pumping_, true)) return;
  }
  pump();
}

/// Begins every step that can begin. One thread at a time, so that they begin in order: the one that set is_pumping_. It
/// alone calls `done`, because with the last one the ring may go.
void ChunkRing::pump() {
  std::size_t slot = 0;
  bool is_second = false;
  bool more = true;
  while (more) {
    std::vector<std::shared_ptr<Message>> finished;
    more = next_step(&slot, &is_second, &finished);
    if (more) begin_step(slot, is_second);
    for (const auto& each : finished) each->done(each->problem ? &*each->problem : nullptr);
  }
}

/// What to begin next; false, and the pumping ends, when there is nothing. And whose `done` is to be called.
bool ChunkRing::next_step(std::size_t* slot, bool* is_second, std::vector<std::shared_ptr<Message>>* finished) {
  const std::lock_guard lock(mutex_);
  finished->swap(finished_);
  if (slots_[second_at_].state == State::kBetween) {
    *slot = second_at_;
    *is_second = true;
    slots_[second_at_].state = State::kSecond;
    second_at_ = (second_at_ + 1) % slots_.size();
    return true;
  }
  if (waiting_.empty() || slots_[first_at_].state != State::kFree) {
    is_pumping_ = false;
    return false;
  }
  Slot& next = slots_[first_at_];
  Message& message = *waiting_.front();
  next.state = State::kFirst;
  next.message = waiting_.front();
  next.offset = message.begun;
  next.bytes = std::min(chunk_bytes_, message.buffer.bytes - message.begun);
  message.begun += next.bytes;
  ++message.under_way;
  message.is_begun = message.begun == message.buffer.bytes;
  if (message.is_begun) waiting_.pop_front();
  *slot = first_at_;
  *is_second = false;
  first_at_ = (first_at_ + 1) % slots_.size();
  return true;
}

void ChunkRing::begin_step(std::size_t index, bool is_second) {
  // Nobody changes a slot while one of its steps is under way, but its message's problem may come from another one.
  const Slot& slot = slots_[index];
  auto ended = [this, index, is_second](const Error* problem) { end_step(index, is_second, problem); };
  void* const chunk = static_cast<std::byte*>(memory_.data) + index * chunk_bytes_;
  const bool sends = direction_ == Direction::kSend;
  std::optional<Error> problem;
  {
    const std::lock_guard lock(mutex_);
    problem = slot.message->problem;
  }
  if (problem) return ended(&*problem);
  try {
    if (sends != is_second) return copy_chunk(slot, chunk, sends, std::move(ended));
    const DirectBuffer part{chunk, slot.bytes, memory_.kind};
    sends ? port_.send(slot.message->number, part, ended) : port_.receive(slot.message->number, part, ended);
  } catch (const Error& error) {
    ended(&error);
  }
}

void ChunkRing::copy_chunk(const Slot& slot, void* chunk, bool into_chunk, DirectPort::Done ended) {
  std::byte* const user = static_cast<std::byte*>(slot.message->buffer.data) + slot.offset;
  void* const to = into_chunk ? chunk : user;
  const void* const from = into_chunk ? user : chunk;
  copier_.copy(to, from, slot.bytes, std::move(ended));
}

void ChunkRing::end_step(std::size_t index, bool is_second, const Error* problem) {
  {
    const std::lock_guard lock(mutex_);
    Slot& slot = slots_[index];
    Message& message = *slot.message;
    if (problem != nullptr && !message.problem) {
      message.problem = *problem;
      if (!message.is_begun) std::erase(waiting_, slot.message);
      message.is_begun = true;
    }
    slot.state = is_second ? State::kFree : State::kBetween;
    if (is_second) {
      --message.under_way;
      if (message.is_begun && message.under_way == 0) finished_.push_back(slot.message);
      slot.message.reset();
    }
    if (std::exchange(is_pumping_, true)) return;
  }
  pump();
}

}  // namespace atl::transport
