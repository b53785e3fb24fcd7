// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/link/arrivals.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "atoll/infer/malformed.h"
#include "atoll/infer/row_map.h"
#include "atoll/infer/wire/codecs.h"

namespace atl::infer {
namespace {

constexpr std::size_t kBufferAlignment = 64;
// Packed bytes may exceed the plain ones by a codec's header.
constexpr std::size_t kMaxOverhead = 4096;

std::string rows_text(int tensor, Region rows) {
  return "rows " + to_string(rows) + " of tensor " + std::to_string(tensor);
}

}  // namespace

Tensor type_of_rows(const Tensor& whole, int dim, Region rows) {
  Tensor type = whole;
  if (dim >= 0) type.shape.at(static_cast<std::size_t>(dim)) = rows.size();
  return type;
}

// Memory aligned to 64 bytes, as kernels prefer it.
struct Arrivals::Buffer {
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{kBufferAlignment}); }
  };
  explicit Buffer(std::size_t size)
      : bytes(new (std::align_val_t{kBufferAlignment}) std::byte[std::max<std::size_t>(size, 1)]) {}
  std::unique_ptr<std::byte[], Free> bytes;
};

Arrivals::Arrivals(const Graph& graph, const Operators& operators, const Program& program) {
  for (const Step& step : program.steps) {
    if (step.kind != Step::Kind::kReceive) continue;
    Message message;
    message.rows = step.rows;
    message.type = type_of_rows(graph, operators, step.index, step.rows);
    message.most_bytes = static_cast<std::size_t>(message.type.bytes()) + kMaxOverhead;
    messages_.emplace(Key{step.index, step.rows.begin}, std::move(message));
  }
}

Arrivals::~Arrivals() = default;

void Arrivals::begin(std::uint64_t inference) {
  const std::lock_guard lock(mutex_);
  inference_ = inference;
  failed_.reset();
  for (auto& [key, message] : messages_) {
    if (message.packed.use_count() > 1) message.packed.reset();
    if (message.plain.use_count() > 1) message.plain.reset();
    message.size = message.there = message.first_bytes = 0;
    message.has_started = message.is_complete = false;
  }
}

std::uint64_t Arrivals::inference() const {
  const std::lock_guard lock(mutex_);
  return inference_;
}

std::optional<wire::Ack> Arrivals::take(const wire::FrameHeader& header, std::span<const std::byte> payload) {
  const std::lock_guard lock(mutex_);
  if (header.id < inference_) return std::nullopt;
  const Region rows{header.rows_begin, header.rows_end};
  const std::string what = rows_text(header.tensor, rows);
  if (header.id != inference_)
    malformed(what + " belong to inference " + std::to_string(header.id) + ", which has not started");
  const auto found = messages_.find({header.tensor, header.rows_begin});
  if (found == messages_.end() || found->second.rows != rows)
    malformed(what + " arrived, which this side does not expect");
  Message& message = found->second;
  if (!message.has_started) {
    if (header.message_bytes > message.most_bytes) {
      malformed(what + " were announced with " + std::to_string(header.message_bytes) + " bytes; they have " +
                std::to_string(message.type.bytes()));
    }
    message.size = header.message_bytes;
    message.codec = header.codec;
    message.started = Clock::now();
    message.first_bytes = payload.size();
    message.has_started = true;
    if (!message.packed) message.packed = std::make_shared<Buffer>(message.most_bytes);
  }
  if (message.is_complete || header.message_bytes != message.size || header.codec != message.codec ||
      header.offset != message.there || payload.size() > message.size - message.there) {
    malformed(what + ": a frame at byte " + std::to_string(header.offset) + " of " +
              std::to_string(header.message_bytes) + " does not follow the " + std::to_string(message.there) +
              " bytes received so far");
  }
  if (!payload.empty()) std::memcpy(message.packed->bytes.get() + message.there, payload.data(), payload.size());
  message.there += payload.size();
  if (message.there < message.size) return std::nullopt;
  message.is_complete = true;
  changed_.notify_all();
  wire::Ack ack;
  ack.inference = header.id;
  ack.tensor = header.tensor;
  ack.rows_begin = header.rows_begin;
  ack.bytes = message.size;
  ack.elapsed_us = wire::microseconds(Clock::now() - message.started);
  ack.first_bytes = message.first_bytes;
  return ack;
}

std::optional<HostBytes> Arrivals::wait(int tensor, Region rows, Deadline until) {
  std::unique_lock lock(mutex_);
  const auto found = messages_.find({tensor, rows.begin});
  if (found == messages_.end() || found->second.rows != rows) {
    throw Error(ErrorKind::kInternal, rows_text(tensor, rows) + " are not expected");
  }
  Message& message = found->second;
  const auto is_over = [&] { return message.is_complete || failed_.has_value(); };
  if (until.is_never()) {
    changed_.wait(lock, is_over);
  } else if (!changed_.wait_until(lock, until.when(), is_over)) {
    return std::nullopt;
  }
  // Complete rows count even if the link was lost after they had arrived.
  if (!message.is_complete) throw *failed_;
  const auto size = static_cast<std::size_t>(message.type.bytes());
  if (message.codec == wire::Codec::kRaw) {
    if (message.size != size)
      malformed(rows_text(tensor, rows) + " arrived with " + std::to_string(message.size) + " bytes of " +
                std::to_string(size));
    return HostBytes{{message.packed->bytes.get(), size}, message.packed};
  }
  if (!message.plain) message.plain = std::make_shared<Buffer>(size);
  // A complete message does not change until begin(), which only this caller's thread calls.
  const std::shared_ptr<Buffer> packed = message.packed;
  const std::shared_ptr<Buffer> plain = message.plain;
  lock.unlock();
  wire::unpack(message.codec, message.type, {packed->bytes.get(), message.size}, {plain->bytes.get(), size});
  return HostBytes{{plain->bytes.get(), size}, plain};
}

bool Arrivals::are_there(int tensor, Region rows) const {
  const std::lock_guard lock(mutex_);
  const auto found = messages_.find({tensor, rows.begin});
  return found != messages_.end() && found->second.rows == rows && found->second.is_complete;
}

void Arrivals::fail(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (!failed_) failed_ = error;
  changed_.notify_all();
}

}  // namespace atl::infer
