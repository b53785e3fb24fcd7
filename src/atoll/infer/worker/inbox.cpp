// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/worker/inbox.h"

#include <pthread.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

namespace atl::infer {
namespace {

constexpr std::size_t kInboxReadBytes = std::size_t{1} << 18;

}  // namespace

Inbox::Inbox(int socket, FrameSender& sender, PayloadReader* lent)
    : socket_(socket), sender_(sender), lent_(lent), thread_([this] { read(); }) {}

Inbox::~Inbox() { thread_.join(); }

void Inbox::add_division(std::uint32_t division, std::shared_ptr<Arrivals> arrivals) {
  const std::lock_guard lock(mutex_);
  divisions_[division] = std::move(arrivals);
}

std::optional<wire::Message> Inbox::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !messages_.empty() || is_over_; });
  if (messages_.empty()) {
    if (error_) throw *error_;
    return std::nullopt;
  }
  wire::Message message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

bool Inbox::wait_for_turn() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return has_turn_ || is_over_; });
  return std::exchange(has_turn_, false);
}

void Inbox::read() {
  pthread_setname_np(pthread_self(), "atoll-inbox");
  wire::FrameParser parser;
  std::vector<std::byte> buffer(kInboxReadBytes);
  try {
    for (;;) {
      const ssize_t count = ::recv(socket_, buffer.data(), buffer.size(), 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) break;
      parser.push({buffer.data(), static_cast<std::size_t>(count)},
                  [this](const wire::ReceivedFrame& frame) { take(frame); });
    }
    end(std::nullopt);
  } catch (const Error& error) {
    end(error);
  } catch (const std::exception& error) {
    end(Error(ErrorKind::kInternal, error.what()));
  }
}

void Inbox::take(const wire::ReceivedFrame& frame) {
  if (frame.header.kind == wire::FrameKind::kTensor) return deliver(frame.header, frame.payload);
  if (frame.header.kind == wire::FrameKind::kLent && lent_ != nullptr) {
    const wire::LentPayload lent = wire::lent_by(frame);
    deliver(frame.header, lent_->at(lent));
    return lent_->release(lent);
  }
  if (frame.header.kind != wire::FrameKind::kControl)
    throw Error(ErrorKind::kProtocol, "a worker does not accept such frames");
  wire::Message message = wire::decode(frame.payload);
  const std::lock_guard lock(mutex_);
  if (const auto* cancel = std::get_if<wire::Cancel>(&message)) {
    cancelled_ = std::max(cancelled_.load(), cancel->inference);
  } else if (std::holds_alternative<wire::Turn>(message)) {
    has_turn_ = true;
  } else {
    if (const auto* run = std::get_if<wire::Run>(&message)) {
      // Its rows may arrive before the thread that runs it takes the message.
      const auto found = divisions_.find(run->division);
      current_ = found == divisions_.end() ? nullptr : found->second;
      if (current_) current_->begin(run->inference);
    }
    messages_.push_back(std::move(message));
  }
  changed_.notify_all();
}

void Inbox::deliver(const wire::FrameHeader& header, std::span<const std::byte> payload) {
  std::shared_ptr<Arrivals> arrivals;
  {
    const std::lock_guard lock(mutex_);
    arrivals = current_;
  }
  if (!arrivals) return;  // of an unknown division, which Run reports
  if (const auto ack = arrivals->take(header, payload)) {
    sender_.send(wire::Message(*ack));  // for cancelled inferences, too, because it measures the link
  }
}

void Inbox::end(std::optional<Error> error) {
  const std::lock_guard lock(mutex_);
  is_over_ = true;
  error_ = std::move(error);
  const Error gone(ErrorKind::kPeerLost, "the server has closed the connection");
  for (const auto& [division, arrivals] : divisions_) arrivals->fail(error_.value_or(gone));
  changed_.notify_all();
}

}  // namespace atl::infer
