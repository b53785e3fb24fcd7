// SPDX-License-Identifier: Apache-2.0
#include "atoll/redis/protocol.h"

#include <hiredis/hiredis.h>
#include <hiredis/read.h>

#include <exception>
#include <utility>

#include "atoll/core/error.h"

namespace atl::redis {

namespace detail {

/// The limit on the parts of one reply; a maker returns null above it.
struct Budget {
  std::size_t elements = kMaxReplyElements;
  bool exceeded = false;
};

}  // namespace detail

namespace {

using detail::Budget;

Budget& budget_of(const redisReadTask* task) { return *static_cast<Budget*>(task->privdata); }

/// Returns the place of this part: in its parent, which has room for all of its elements, or on its own.
Reply* place_for(const redisReadTask* task) {
  if (task->parent == nullptr) return new Reply;
  return &static_cast<Reply*>(task->parent->obj)->elements[static_cast<std::size_t>(task->idx)];
}

template <typename Fill>
void* make(const redisReadTask* task, const Fill& fill) noexcept {
  try {
    Reply* const reply = place_for(task);
    try {
      fill(*reply);
    } catch (...) {
      if (task->parent == nullptr) delete reply;
      throw;
    }
    return reply;
  } catch (const std::exception&) {
    return nullptr;
  }
}

void* make_text(const redisReadTask* task, char* text, std::size_t size) {
  return make(task, [&](Reply& reply) {
    reply.text.assign(text, size);
    reply.kind = task->type == REDIS_REPLY_ERROR    ? Reply::Kind::kError
                 : task->type == REDIS_REPLY_STATUS ? Reply::Kind::kStatus
                                                    : Reply::Kind::kText;
  });
}

int depth_of(const redisReadTask* task) {
  int depth = 1;
  for (const auto* above = task->parent; above != nullptr; above = above->parent) ++depth;
  return depth;
}

template <typename Count>
void* make_array(const redisReadTask* task, Count count) {
  Budget& budget = budget_of(task);
  if (static_cast<std::uint64_t>(count) > budget.elements || depth_of(task) > kMaxReplyDepth) {
    budget.exceeded = true;
    return nullptr;
  }
  budget.elements -= static_cast<std::size_t>(count);
  return make(task, [&](Reply& reply) {
    reply.kind = Reply::Kind::kArray;
    reply.elements.resize(static_cast<std::size_t>(count));
  });
}

void* make_integer(const redisReadTask* task, long long value) {
  return make(task, [&](Reply& reply) {
    reply.kind = Reply::Kind::kInteger;
    reply.integer = value;
  });
}

void* make_nil(const redisReadTask* task) {
  return make(task, [](Reply& reply) { reply.kind = Reply::Kind::kNil; });
}

void release(void* reply) { delete static_cast<Reply*>(reply); }

/// hiredis 1 counts elements with another type than 0.14, and has kinds of replies that RESP2 lacks.
template <typename Result, typename Task, typename Count>
constexpr auto array_maker(Result (*)(Task, Count)) {
  return &make_array<Count>;
}

redisReplyObjectFunctions* makers() {
  static redisReplyObjectFunctions functions = [] {
    redisReplyObjectFunctions made{};
    made.createString = make_text;
    made.createArray = array_maker(decltype(made.createArray){});
    made.createInteger = make_integer;
    made.createNil = make_nil;
    made.freeObject = release;
    return made;
  }();
  return &functions;
}

}  // namespace

struct ReplyReader::Impl {
  struct Free {
    void operator()(redisReader* reader) const noexcept { redisReaderFree(reader); }
  };

  detail::Budget budget;
  std::unique_ptr<redisReader, Free> reader;
  std::size_t received = 0;  // since the last reply
};

std::string format_command(std::span<const std::string> arguments) {
  std::vector<const char*> texts;
  std::vector<std::size_t> sizes;
  for (const auto& argument : arguments) {
    texts.push_back(argument.data());
    sizes.push_back(argument.size());
  }
  char* formatted = nullptr;
  const auto size = redisFormatCommandArgv(&formatted, static_cast<int>(arguments.size()), texts.data(), sizes.data());
  if (size < 0) throw Error(ErrorKind::kUnavailable, "no memory for a Redis command");
  std::string command(formatted, static_cast<std::size_t>(size));
  redisFreeCommand(formatted);
  return command;
}

ReplyReader::ReplyReader() : impl_(std::make_unique<Impl>()) {
  impl_->reader.reset(redisReaderCreateWithFunctions(makers()));
  if (!impl_->reader) throw Error(ErrorKind::kUnavailable, "no memory for Redis replies");
  impl_->reader->privdata = &impl_->budget;
}

ReplyReader::~ReplyReader() = default;

void ReplyReader::feed(std::span<const std::byte> bytes) {
  impl_->received += bytes.size();
  if (impl_->received > kMaxReplyBytes) {
    throw Error(ErrorKind::kProtocol, "a Redis reply has more than ", kMaxReplyBytes, " bytes");
  }
  if (redisReaderFeed(impl_->reader.get(), reinterpret_cast<const char*>(bytes.data()), bytes.size()) != REDIS_OK) {
    throw Error(ErrorKind::kUnavailable, "no memory for a Redis reply");
  }
}

std::optional<Reply> ReplyReader::next() {
  void* found = nullptr;
  if (redisReaderGetReply(impl_->reader.get(), &found) != REDIS_OK) {
    if (impl_->budget.exceeded) {
      throw Error(ErrorKind::kProtocol, "a Redis reply has more than ", kMaxReplyElements, " elements or ",
                  kMaxReplyDepth, " levels");
    }
    throw Error(ErrorKind::kProtocol, std::string("invalid Redis reply: ") + impl_->reader->errstr);
  }
  if (found == nullptr) return std::nullopt;
  const std::unique_ptr<Reply> reply(static_cast<Reply*>(found));
  impl_->received = 0;
  impl_->budget.elements = kMaxReplyElements;
  return std::move(*reply);
}

}  // namespace atl::redis
