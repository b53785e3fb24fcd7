// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/wire/message_checks.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "atoll/core/error.h"
#include "atoll/infer/graph.h"
#include "atoll/infer/graph_json.h"

namespace atl::infer::wire {
namespace {

// Checks the fields of a message. The overload of `operator()` for each message defines what they may be.
class Checker {
 public:
  Checker(const char* message, Way way) : message_(message), way_(way) {}

  void operator()(const Hello& m) const {
    at_most("software", m.software, kMaxLabelBytes);
    at_most("name", m.name, kMaxLabelBytes);
  }
  void operator()(const Welcome& m) const {
    at_most("software", m.software, kMaxLabelBytes);
    at_most("device", m.device, kMaxLabelBytes);
    sentence("note", m.note);
  }
  void operator()(const Open& m) const {
    number("model", m.model);
    at_most("graph_bytes", m.graph_bytes, kMaxGraphBytes);
    at_most("weight_bytes", m.weight_bytes, kMaxWeightBytes);
  }
  void operator()(const Need& m) const {
    number("model", m.model);
    at_most("weights_from", m.weights_from, kMaxWeightBytes);
  }
  void operator()(const GraphText& m) const {
    number("model", m.model);
    at_most("text", m.text, kMaxGraphBytes);
  }
  void operator()(const Queued& m) const {
    number("model", m.model);
    sentence("why", m.why);
  }
  void operator()(const Ready& m) const {
    number("model", m.model);
    at_most("device", m.device, kMaxLabelBytes);
    times("fixed", m.fixed, m.whole.size());
    times("per_row", m.per_row, m.whole.size());
    times("whole", m.whole, m.whole.size());
    divided(m.input_tensor, m.dim);
  }
  void operator()(const Divide& m) const {
    number("model", m.model);
    divided(m.plan.input_tensor, m.plan.dim);
    at_most("shares' number", m.plan.shares.size(), kMaxTensors);
    for (const plan::Share& share : m.plan.shares) {
      region(share.robot);
      region(share.server);
    }
    between("chunks", m.plan.chunks, 1, kMaxChunks);
    at_most("answer_codec", static_cast<std::uint64_t>(m.answer_codec), static_cast<std::uint64_t>(Codec::kInt8));
  }
  void operator()(const Divided& m) const { number("model", m.model); }
  void operator()(const Run& m) const {
    number("model", m.model);
    number("inference", m.inference);
    at_most("budget_us", m.budget_us, kMaxMicroseconds);
  }
  void operator()(const Done& m) const {
    number("inference", m.inference);
    at_most("compute_us", m.compute_us, kMaxMicroseconds);
    at_most("waited_us", m.waited_us, kMaxMicroseconds);
    at_most("received_us", m.received_us, kMaxMicroseconds);
    load(m.load);
  }
  void operator()(const Cancel& m) const { number("inference", m.inference); }
  void operator()(const Ack& m) const {
    between("tensor", m.tensor, 0, static_cast<std::int64_t>(kMaxTensors) - 1);
    between("rows_begin", m.rows_begin, 0, INT32_MAX);
    at_most("bytes", m.bytes, UINT32_MAX);
    at_most("elapsed_us", m.elapsed_us, kMaxMicroseconds);
    at_most("first_bytes", m.first_bytes, m.bytes);
  }
  void operator()(const Ping&) const {}
  void operator()(const Pong& m) const { load(m.load); }
  void operator()(const Failed& m) const {
    at_most("kind", static_cast<std::uint64_t>(m.kind), static_cast<std::uint64_t>(ErrorKind::kInternal));
    sentence("text", m.text);
  }
  void operator()(const Draining& m) const { sentence("text", m.text); }
  void operator()(const Close& m) const { number("model", m.model); }
  void operator()(const Bye&) const {}
  void operator()(const Offer& m) const { number("model", m.model); }
  void operator()(const Mapped& m) const { number("model", m.model); }
  void operator()(const Turn& m) const {
    at_most("what", static_cast<std::uint64_t>(m.what), static_cast<std::uint64_t>(Turn::What::kOver));
  }

 private:
  [[noreturn]] void fail(const std::string& field, const std::string& value, const std::string& allowed) const {
    const ErrorKind kind = way_ == Way::kIn ? ErrorKind::kProtocol : ErrorKind::kInvalidArgument;
    throw Error(kind, std::string("the message ") + message_ + " has " + field + " " + value + "; allowed: " + allowed);
  }
  void at_most(const char* field, const std::string& text, std::size_t most) const {
    if (text.size() <= most) return;
    fail(field, "of " + std::to_string(text.size()) + " bytes", "at most " + std::to_string(most));
  }
  void sentence(const char* field, const std::string& text) const {
    if (way_ == Way::kIn) at_most(field, text, kMaxNoteBytes);
  }
  void at_most(const char* field, std::uint64_t value, std::uint64_t most) const {
    if (value > most) fail(field, std::to_string(value), "at most " + std::to_string(most));
  }
  void between(const char* field, std::int64_t value, std::int64_t least, std::int64_t most) const {
    if (value >= least && value <= most) return;
    fail(field, std::to_string(value), std::to_string(least) + " to " + std::to_string(most));
  }
  // The number of a model or an inference.
  void number(const char* field, std::uint64_t value) const {
    if (value == 0) fail(field, "0", "a non-zero number");
  }
  void times(const char* field, const std::vector<double>& seconds, std::size_t count) const {
    if (seconds.size() != count || count > kMaxNodes) {
      fail(field, "of " + std::to_string(seconds.size()) + " entries",
           "one entry for each node in fixed, per_row and whole, at most " + std::to_string(kMaxNodes));
    }
    for (const double value : seconds) {
      if (!std::isfinite(value) || value < 0) fail(field, std::to_string(value), "a finite, non-negative time");
    }
  }
  void load(const Load& m) const {
    const bool is_told = m.turns > 0;
    at_most("turns", m.turns, kMaxTurns);
    mean("computing", m.computing, m.turns);
    mean("waiting", m.waiting, is_told ? kMaxWaiting : 0);
    at_most("turn_us", m.turn_us, is_told ? kMaxMicroseconds : 0);
  }
  void mean(const char* field, double value, std::uint32_t most) const {
    if (std::isfinite(value) && value >= 0 && value <= most) return;
    fail(field, std::to_string(value), "0 to " + std::to_string(most));
  }
  void divided(std::int32_t input_tensor, std::int32_t dim) const {
    between("input_tensor", input_tensor, -1, static_cast<std::int64_t>(kMaxTensors) - 1);
    between("dim", dim, -1, static_cast<std::int64_t>(kMaxDims) - 1);
    if ((input_tensor < 0) != (dim < 0))
      fail("dim", std::to_string(dim), "-1 for both input_tensor and dim, or for none");
  }
  void region(const Region& rows) const {
    if (rows.begin >= 0 && rows.begin <= rows.end && rows.end < kIntegerBound) return;
    fail("shares of", "[" + std::to_string(rows.begin) + ", " + std::to_string(rows.end) + ")",
         "0 <= begin <= end < 2^40");
  }

  const char* message_;
  Way way_;
};

}  // namespace

void check(const Message& message, Way way) { std::visit(Checker(name_of(message), way), message); }

}  // namespace atl::infer::wire
