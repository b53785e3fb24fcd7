// SPDX-License-Identifier: Apache-2.0
// Replaces protocol.cpp in builds without hiredis.
#include "atoll/core/error.h"
#include "atoll/redis/protocol.h"

namespace atl::redis {

namespace {

[[noreturn]] void absent() {
  throw Error(ErrorKind::kUnavailable,
              "this build of Atoll has no Redis store: install Debian's libhiredis-dev and build Atoll again");
}

}  // namespace

struct ReplyReader::Impl {};

std::string format_command(std::span<const std::string>) { absent(); }

ReplyReader::ReplyReader() { absent(); }
ReplyReader::~ReplyReader() = default;
void ReplyReader::feed(std::span<const std::byte>) { absent(); }
std::optional<Reply> ReplyReader::next() { absent(); }

}  // namespace atl::redis
