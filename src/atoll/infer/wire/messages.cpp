// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/wire/messages.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "atoll/infer/malformed.h"
#include "atoll/infer/wire/message_checks.h"
#include "atoll/infer/wire/messages_generated.h"

namespace atl::infer::wire {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

// An envelope, the body and nothing inside it but strings and vectors.
constexpr std::uint32_t kMaxDepth = 2;
constexpr std::uint32_t kMaxTables = 2;
constexpr std::size_t kMinEnvelopeBytes = 16;  // of an envelope that is not empty

// A sentence cut to its maximum length, without an incomplete UTF-8 character at its end.
std::string_view short_of(std::string_view text) {
  if (text.size() <= kMaxNoteBytes) return text;
  std::size_t end = kMaxNoteBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;
  return text.substr(0, end);
}

auto string(FlatBufferBuilder& to, std::string_view text) { return to.CreateString(text.data(), text.size()); }

auto bytes(FlatBufferBuilder& to, std::span<const std::byte> from) {
  return to.CreateVector(reinterpret_cast<const std::uint8_t*>(from.data()), from.size());
}

// A message as a table, with its number in the union.
class Writer {
 public:
  explicit Writer(FlatBufferBuilder& to) : to_(to) {}

  void operator()(const Hello& m) {
    const auto software = string(to_, m.software);
    const auto name = string(to_, m.name);
    finish(fbs::CreateHello(to_, software, name, m.rules, m.port));
  }
  void operator()(const Welcome& m) {
    const auto software = string(to_, m.software);
    const auto device = string(to_, m.device);
    const auto note = string(to_, short_of(m.note));
    finish(fbs::CreateWelcome(to_, software, device, m.most_model_bytes, m.most_sessions, m.models, note, m.rules));
  }
  void operator()(const Open& m) {
    finish(fbs::CreateOpen(to_, m.model, bytes(to_, m.hash), m.graph_bytes, m.weight_bytes));
  }
  void operator()(const Need& m) { finish(fbs::CreateNeed(to_, m.model, m.graph, m.weights_from)); }
  void operator()(const GraphText& m) { finish(fbs::CreateGraphText(to_, m.model, string(to_, m.text))); }
  void operator()(const Queued& m) { finish(fbs::CreateQueued(to_, m.model, m.ahead, string(to_, short_of(m.why)))); }
  void operator()(const Ready& m) {
    const auto device = string(to_, m.device);
    const auto fixed = to_.CreateVector(m.fixed);
    const auto per_row = to_.CreateVector(m.per_row);
    const auto whole = to_.CreateVector(m.whole);
    finish(fbs::CreateReady(to_, m.model, device, fixed, per_row, whole, m.input_tensor, m.dim));
  }
  void operator()(const Divide& m) {
    std::vector<fbs::Share> shares;
    shares.reserve(m.plan.shares.size());
    for (const plan::Share& share : m.plan.shares) {
      shares.emplace_back(share.robot.begin, share.robot.end, share.server.begin, share.server.end);
    }
    const auto offset = to_.CreateVectorOfStructs(shares);
    finish(fbs::CreateDivide(to_, m.model, m.division, m.plan.input_tensor, m.plan.dim, offset,
                             static_cast<std::uint32_t>(m.plan.chunks), static_cast<std::uint8_t>(m.answer_codec)));
  }
  void operator()(const Divided& m) { finish(fbs::CreateDivided(to_, m.model, m.division)); }
  void operator()(const Run& m) { finish(fbs::CreateRun(to_, m.model, m.inference, m.division, m.budget_us)); }
  void operator()(const Done& m) {
    finish(fbs::CreateDone(to_, m.inference, m.compute_us, m.waited_us, m.received_us, m.load.turns, m.load.computing,
                           m.load.waiting, m.load.turn_us));
  }
  void operator()(const Cancel& m) { finish(fbs::CreateCancel(to_, m.inference)); }
  void operator()(const Ack& m) {
    finish(fbs::CreateAck(to_, m.inference, m.tensor, m.rows_begin, m.bytes, m.elapsed_us, m.first_bytes));
  }
  void operator()(const Ping& m) { finish(fbs::CreatePing(to_, m.token)); }
  void operator()(const Pong& m) {
    finish(fbs::CreatePong(to_, m.token, m.load.turns, m.load.computing, m.load.waiting, m.load.turn_us));
  }
  void operator()(const Failed& m) {
    finish(
        fbs::CreateFailed(to_, m.model, m.inference, static_cast<std::uint8_t>(m.kind), string(to_, short_of(m.text))));
  }
  void operator()(const Draining& m) { finish(fbs::CreateDraining(to_, string(to_, short_of(m.text)))); }
  void operator()(const Close& m) { finish(fbs::CreateClose(to_, m.model)); }
  void operator()(const Turn& m) { finish(fbs::CreateTurn(to_, static_cast<std::uint8_t>(m.what))); }
  void operator()(const Offer& m) {
    const auto door = bytes(to_, m.door);
    const auto ticket = bytes(to_, m.ticket);
    finish(fbs::CreateOffer(to_, m.model, door, ticket));
  }
  void operator()(const Mapped& m) { finish(fbs::CreateMapped(to_, m.model)); }
  void operator()(const Bye&) { finish(fbs::CreateBye(to_)); }

 private:
  template <class T>
  void finish(Offset<T> table) {
    fbs::FinishEnvelopeBuffer(to_, fbs::CreateEnvelope(to_, fbs::BodyTraits<T>::enum_value, table.Union()));
  }

  FlatBufferBuilder& to_;
};

// The verifier does not check the alignment of 8-byte elements, so they are copied.
std::vector<double> numbers(const flatbuffers::Vector<double>& from) {
  std::vector<double> values(from.size());
  if (!values.empty()) std::memcpy(values.data(), from.Data(), values.size() * sizeof(double));
  return values;
}

fbs::Share share_at(const fbs::Divide& m, std::size_t index) {
  fbs::Share share;
  std::memcpy(&share, m.shares()->Data() + index * sizeof(share), sizeof(share));
  return share;
}

template <std::size_t size>
void read_bytes(const flatbuffers::Vector<std::uint8_t>& from, std::array<std::byte, size>& to, const char* what) {
  if (from.size() != size) {
    malformed(std::string("the message ") + what + " of " + std::to_string(from.size()) +
              " bytes; allowed: " + std::to_string(size));
  }
  std::memcpy(to.data(), from.data(), size);
}

// Tables as messages. They have been verified, so required fields exist.
Hello read(const fbs::Hello& m) { return {m.software()->str(), m.name()->str(), m.rules(), m.port()}; }
Welcome read(const fbs::Welcome& m) {
  return {m.software()->str(), m.device()->str(), m.most_model_bytes(), m.most_sessions(), m.models(),
          m.note()->str(),     m.rules()};
}
Open read(const fbs::Open& m) {
  Open open{m.model(), {}, m.graph_bytes(), m.weight_bytes()};
  read_bytes(*m.hash(), open.hash, "Open has hash");
  return open;
}
Need read(const fbs::Need& m) { return {m.model(), m.graph(), m.weights_from()}; }
GraphText read(const fbs::GraphText& m) { return {m.model(), m.text()->str()}; }
Queued read(const fbs::Queued& m) { return {m.model(), m.ahead(), m.why()->str()}; }
Ready read(const fbs::Ready& m) {
  return {
      m.model(), m.device()->str(), numbers(*m.fixed()), numbers(*m.per_row()), numbers(*m.whole()), m.input_tensor(),
      m.dim()};
}
Divide read(const fbs::Divide& m) {
  const auto codec = static_cast<Codec>(m.answer_codec());
  const auto chunks = static_cast<int>(std::min<std::uint32_t>(m.chunks(), INT32_MAX));
  Divide divide{m.model(), m.division(), {m.input_tensor(), m.dim(), {}, chunks}, codec};
  divide.plan.shares.reserve(m.shares()->size());
  for (std::size_t i = 0; i < m.shares()->size(); ++i) {
    const fbs::Share share = share_at(m, i);
    divide.plan.shares.push_back(
        {{share.robot_begin(), share.robot_end()}, {share.server_begin(), share.server_end()}});
  }
  return divide;
}
Divided read(const fbs::Divided& m) { return {m.model(), m.division()}; }
Run read(const fbs::Run& m) { return {m.model(), m.inference(), m.division(), m.budget_us()}; }
// The load in Done or Pong, which have the same fields for it.
template <class Table>
Load load_of(const Table& m) {
  return {m.turns(), m.computing(), m.waiting(), m.turn_us()};
}
Done read(const fbs::Done& m) { return {m.inference(), m.compute_us(), m.waited_us(), m.received_us(), load_of(m)}; }
Cancel read(const fbs::Cancel& m) { return {m.inference()}; }
Ack read(const fbs::Ack& m) {
  return {m.inference(), m.tensor(), m.rows_begin(), m.bytes(), m.elapsed_us(), m.first_bytes()};
}
Ping read(const fbs::Ping& m) { return {m.token()}; }
Pong read(const fbs::Pong& m) { return {m.token(), load_of(m)}; }
Failed read(const fbs::Failed& m) {
  return {m.model(), m.inference(), static_cast<ErrorKind>(m.kind()), m.text()->str()};
}
Draining read(const fbs::Draining& m) { return {m.text()->str()}; }
Close read(const fbs::Close& m) { return {m.model()}; }
Turn read(const fbs::Turn& m) { return {static_cast<Turn::What>(m.what())}; }
Offer read(const fbs::Offer& m) {
  Offer offer{m.model(), {}, {}};
  read_bytes(*m.door(), offer.door, "Offer has door");
  read_bytes(*m.ticket(), offer.ticket, "Offer has ticket");
  return offer;
}
Mapped read(const fbs::Mapped& m) { return {m.model()}; }
Bye read(const fbs::Bye& /*m*/) { return {}; }

// None for a body of another kind.
template <class... Tables>
std::optional<Message> try_read(const fbs::Envelope& envelope) {
  static_assert(sizeof...(Tables) == std::variant_size_v<Message>);
  std::optional<Message> message;
  const auto take = [&](const auto* body) {
    if (body != nullptr) message = read(*body);
  };
  (take(envelope.body_as<Tables>()), ...);
  return message;
}

Message body_of(const fbs::Envelope& envelope) {
  if (envelope.body() == nullptr) malformed("a message without a body");
  std::optional<Message> message =
      try_read<fbs::Hello, fbs::Welcome, fbs::Open, fbs::Need, fbs::GraphText, fbs::Queued, fbs::Ready, fbs::Divide,
               fbs::Divided, fbs::Run, fbs::Done, fbs::Cancel, fbs::Ack, fbs::Ping, fbs::Pong, fbs::Failed,
               fbs::Draining, fbs::Close, fbs::Bye, fbs::Turn, fbs::Offer, fbs::Mapped>(envelope);
  if (!message) malformed("a message of the unknown kind " + std::to_string(static_cast<int>(envelope.body_type())));
  return std::move(*message);
}

Message read_message(std::span<const std::byte> payload) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(payload.data());
  flatbuffers::Verifier verifier(data, payload.size(), kMaxDepth, kMaxTables);
  if (!fbs::VerifyEnvelopeBuffer(verifier)) {
    malformed("a control frame of " + std::to_string(payload.size()) + " bytes does not hold a message");
  }
  Message message = body_of(*fbs::GetEnvelope(data));
  check(message, Way::kIn);
  return message;
}

}  // namespace

Failed failed(std::uint64_t model, std::uint64_t inference, const Error& error) {
  return {model, inference, error.kind(), error.what()};
}

const char* software() noexcept { return "atoll " ATOLL_VERSION; }

const char* name_of(const Message& message) noexcept {
  return fbs::EnumNameBody(static_cast<fbs::Body>(message.index() + 1));  // the union begins with NONE
}

std::vector<std::byte> encode(const Message& message) {
  check(message, Way::kOut);
  FlatBufferBuilder builder;
  std::visit(Writer(builder), message);
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {data, data + builder.GetSize()};
}

FrameBytes make_frame(const Message& message) { return make_frame(FrameHeader{}, encode(message)); }

Message decode(std::span<const std::byte> payload) {
  if (payload.size() > kMaxControlBytes) {
    malformed("a message of " + std::to_string(payload.size()) + " bytes: at most " + std::to_string(kMaxControlBytes));
  }
  if (payload.size() < kMinEnvelopeBytes)
    malformed("a control frame of " + std::to_string(payload.size()) + " bytes does not hold a message");
  // FlatBuffers reads numbers in place, but in the stream they may not be aligned.
  if (reinterpret_cast<std::uintptr_t>(payload.data()) % alignof(std::uint64_t) == 0) return read_message(payload);
  std::vector<std::uint64_t> aligned((payload.size() + 7) / 8);
  std::memcpy(aligned.data(), payload.data(), payload.size());
  return read_message(std::as_bytes(std::span(aligned)).first(payload.size()));
}

}  // namespace atl::infer::wire
