// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/ucx/direct.h"

#include <cstddef>
#include <iterator>
#include <string>

#include "atoll/core/error.h"

namespace atl::transport {

bool UcxDirect::reaches(MemoryKind kind) const noexcept {
  return kind == MemoryKind::kHost || (context_ != nullptr && context_->knows(kind));
}

void UcxDirect::check(const DirectBuffer& buffer) const {
  if (reaches(buffer.kind)) return;
  throw Error(ErrorKind::kInvalidArgument, to_string(buffer.kind), " memory given to ",
              context_ != nullptr ? context_->version() : "UCX", ", which does not support it here");
}

void UcxDirect::send(std::uint64_t number, const DirectBuffer& from, Done done) {
  begin(number, from, false, std::move(done));
}

void UcxDirect::receive(std::uint64_t number, const DirectBuffer& to, Done done) {
  begin(number, to, true, std::move(done));
}

void UcxDirect::begin(std::uint64_t number, const DirectBuffer& buffer, bool receives, Done done) {
  check(buffer);
  // Shared, because a task can be copied and `done` must be called once.
  auto told = std::make_shared<Done>(std::move(done));
  const bool posted = loop_.post([this, number, buffer, receives, told] {
    if (worker_ == nullptr) {
      const Error why = ended_ ? *ended_ : Error(ErrorKind::kAborted, "the link is not up");
      return (*told)(&why);
    }
    Message& message = under_way_.emplace_back();
    message.port = this;
    message.buffer = buffer;
    message.receives = receives;
    message.done = std::move(*told);
    message.self = std::prev(under_way_.end());
    const ucx::Place place{buffer.data, buffer.bytes, buffer.kind, registration_on_loop(buffer)};
    receives ? worker_->receive_tagged(number ^ secret_, place, message)
             : worker_->send_tagged(number ^ peer_secret_, place, message);
    drive_();
  });
  if (posted) return;
  const Error why(ErrorKind::kAborted, "this rank has shut its links down");
  (*told)(&why);
}

void UcxDirect::Message::finish(const Error* problem, std::size_t bytes) {
  std::optional<Error> wrong;
  if (problem != nullptr) {
    wrong = problem->kind() == ErrorKind::kMismatch || !port->ended_ ? *problem : *port->ended_;
  } else if (receives && bytes != buffer.bytes) {
    wrong = Error(ErrorKind::kMismatch, "a direct message of " + std::to_string(bytes) +
                                            " bytes arrived for a receive of " + std::to_string(buffer.bytes));
  }
  auto told = std::make_shared<Done>(std::move(done));
  UcxDirect& of = *port;
  of.under_way_.erase(self);  // which destroys this
  // Not from inside a callback of UCX, because `done` may end the worker.
  const auto tell = [told, wrong] { (*told)(wrong ? &*wrong : nullptr); };
  if (!of.loop_.post(tell)) tell();
}

const ucx::Registration* UcxDirect::registration_on_loop(const DirectBuffer& buffer) const {
  const auto* const begin = static_cast<const std::byte*>(buffer.data);
  auto found = remembered_.upper_bound(buffer.data);
  if (found == remembered_.begin()) return nullptr;
  --found;
  const auto* const from = static_cast<const std::byte*>(found->first);
  const bool inside = begin + buffer.bytes <= from + found->second.first;
  return inside ? found->second.second.get() : nullptr;
}

void UcxDirect::remember(const DirectBuffer& memory) {
  check(memory);
  loop_.run_and_wait([&] {
    if (worker_ == nullptr) throw ended_ ? *ended_ : Error(ErrorKind::kAborted, "the link is not up");
    remembered_[memory.data] = {memory.bytes,
                                std::make_unique<ucx::Registration>(context_, memory.data, memory.bytes, memory.kind)};
  });
}

void UcxDirect::forget(const DirectBuffer& memory) {
  loop_.run_and_wait([&] { remembered_.erase(memory.data); });
}

void UcxDirect::begin_on_loop(ucx::Worker& worker, std::shared_ptr<ucx::Context> context, std::uint64_t peer_secret,
                              std::uint64_t secret) {
  worker_ = &worker;
  context_ = std::move(context);
  peer_secret_ = peer_secret;
  secret_ = secret;
}

void UcxDirect::end_on_loop(const Error& why) {
  ended_ = why;
  worker_ = nullptr;
}

// UCX silently drops a receive that nothing has matched.
void UcxDirect::end_rest_on_loop() {
  while (!under_way_.empty()) under_way_.front().finish(&*ended_, 0);
  remembered_.clear();
}

}  // namespace atl::transport
