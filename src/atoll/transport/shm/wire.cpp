// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/shm/wire.h"

#include <cerrno>
#include <cstring>

namespace atl::transport::shm {
namespace {

constexpr std::size_t kMaxMemoriesWaiting = 64;
constexpr std::size_t kBufferBytes = 4 * (sizeof(MessageHeader) + kMaxControlBytes);

bool is_known(MessageType type) { return type >= MessageType::kHello && type <= MessageType::kSlab; }

}  // namespace

std::vector<std::byte> encode(MessageType type, std::span<const std::byte> body) {
  const MessageHeader header{.type = type, .body_bytes = static_cast<std::uint32_t>(body.size())};
  std::vector<std::byte> bytes(sizeof(header) + body.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  if (!body.empty()) std::memcpy(bytes.data() + sizeof(header), body.data(), body.size());
  return bytes;
}

MessageParser::MessageParser() : buffer_(kBufferBytes) {}

std::span<std::byte> MessageParser::space() {
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  return std::span(buffer_).subspan(end_);
}

std::optional<Message> MessageParser::next() {
  MessageHeader header;
  if (end_ - begin_ < sizeof(header)) return {};
  std::memcpy(&header, buffer_.data() + begin_, sizeof(header));
  if (header.magic != MessageHeader::kMagic || !is_known(header.type) || header.body_bytes > kMaxControlBytes) {
    throw Error(ErrorKind::kProtocol, "shared-memory link: invalid message header: magic ", header.magic, ", type ",
                static_cast<int>(header.type), ", ", header.body_bytes, " bytes");
  }
  if (end_ - begin_ < sizeof(header) + header.body_bytes) return {};
  const Message message{header.type, std::span(buffer_).subspan(begin_ + sizeof(header), header.body_bytes)};
  begin_ += sizeof(header) + header.body_bytes;
  return message;
}

void Stream::close() noexcept {
  socket_.reset();
  outbox_.clear();
  received_memory_.clear();
}

void Stream::queue(MessageType type, std::span<const std::byte> body, Fd memory) {
  outbox_.push_back({encode(type, body), std::move(memory), 0});
}

bool Stream::send_some(Outgoing& message) {
  const int descriptor = message.memory.get();
  const std::span descriptors(&descriptor, message.memory ? 1U : 0U);
  const ssize_t sent = send_with(socket_.get(), std::span(message.bytes).subspan(message.sent), descriptors);
  if (sent < 0) {
    const int error = errno;
    socket_is_full_ = error == EAGAIN;
    if (error == EINTR) return true;
    if (error == EAGAIN || error == ETOOMANYREFS || error == ENOBUFS || error == ENOMEM) return false;
    message.sent = message.bytes.size();
    return true;
  }
  message.memory.reset();
  message.sent += static_cast<std::size_t>(sent);
  return true;
}

void Stream::flush() {
  socket_is_full_ = false;
  while (!outbox_.empty()) {
    if (!send_some(outbox_.front())) return;
    if (outbox_.front().sent == outbox_.front().bytes.size()) outbox_.pop_front();
  }
}

Stream::Received Stream::receive() {
  // One read returns the descriptors of at most one send, and a message carries one.
  const ssize_t got = receive_with(socket_.get(), parser_.space(), received_memory_);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? Received::kNothing : Received::kEnd;
  if (received_memory_.size() > kMaxMemoriesWaiting) {
    throw Error(ErrorKind::kProtocol, "shared-memory link: descriptors without messages");
  }
  if (got == 0) return Received::kEnd;
  parser_.add(static_cast<std::size_t>(got));
  return Received::kBytes;
}

Fd Stream::take_memory() {
  if (received_memory_.empty())
    throw Error(ErrorKind::kProtocol, "shared-memory link: a message came without its memory");
  Fd memory = std::move(received_memory_.front());
  received_memory_.erase(received_memory_.begin());
  return memory;
}

}  // namespace atl::transport::shm
