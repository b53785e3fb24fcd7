// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/shm/wire.h"

#include <cstring>
#include <string>

#include "atoll/core/error.h"
#include "atoll/transport/plain_bytes.h"

namespace atl::transport::shm {
namespace {

constexpr std::size_t kBufferBytes = 4 * (sizeof(MessageHeader) + kMaxControlBytes);

bool is_known(MessageType type) { return type >= MessageType::kHello && type <= MessageType::kSlab; }

template <typename Body>
Body decode(const Message& message) {
  if (message.body.size() != sizeof(Body)) {
    throw Error(ErrorKind::kProtocol, "shared-memory link: message of type " +
                                          std::to_string(static_cast<int>(message.type)) + " has " +
                                          std::to_string(message.body.size()) + " bytes");
  }
  return read_as<Body>(message.body);
}

}  // namespace

std::vector<std::byte> encode(MessageType type, std::span<const std::byte> body) {
  MessageHeader header;
  header.type = type;
  header.body_bytes = static_cast<std::uint32_t>(body.size());
  std::vector<std::byte> bytes(sizeof(header) + body.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  if (!body.empty()) std::memcpy(bytes.data() + sizeof(header), body.data(), body.size());
  return bytes;
}

Hello decode_hello(const Message& message) { return decode<Hello>(message); }

Open decode_open(const Message& message) { return decode<Open>(message); }
Slab decode_slab(const Message& message) { return decode<Slab>(message); }

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
    throw Error(ErrorKind::kProtocol, "shared-memory link: invalid message header: magic " +
                                          std::to_string(header.magic) + ", type " +
                                          std::to_string(static_cast<int>(header.type)) + ", " +
                                          std::to_string(header.body_bytes) + " bytes");
  }
  if (end_ - begin_ < sizeof(header) + header.body_bytes) return {};
  const Message message{header.type, std::span(buffer_).subspan(begin_ + sizeof(header), header.body_bytes)};
  begin_ += sizeof(header) + header.body_bytes;
  return message;
}

}  // namespace atl::transport::shm
