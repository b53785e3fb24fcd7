// SPDX-License-Identifier: Apache-2.0
#include "tests/support/modelled_runner.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include "atoll/core/deadline.h"
#include "atoll/core/error.h"

namespace atl::infer::test {
namespace {

using Signatures = std::vector<std::uint64_t>;

struct ModelledTensor : DeviceTensor {
  ModelledTensor(Tensor of, Signatures by_row, Clock::time_point at = {}, HostBytes there = {})
      : type(std::move(of)), signatures(std::move(by_row)), ready(at), host(std::move(there)) {}
  Tensor type;
  Signatures signatures;
  Clock::time_point ready;  // when the device has finished it
  HostBytes host;           // as received; without bytes if the device made it
};

struct Layer : Call {
  std::uint64_t salt = 0;
  Tensor output;
  Ints by_rows;
  std::vector<std::int64_t> operand_rows;  // of the whole operands
  plan::RowCost cost;
};

const ModelledTensor& of(const Value& value) { return dynamic_cast<const ModelledTensor&>(*value); }

std::uint64_t mixed(std::uint64_t value) {  // splitmix64's finaliser
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

std::size_t row_bytes(const Tensor& type) { return static_cast<std::size_t>(type.shape.at(1)); }

// A signature has at most as many bits as fit into a row.
std::uint64_t fitting(std::uint64_t signature, std::size_t bytes) {
  return bytes >= 8 ? signature : signature & ((std::uint64_t{1} << (8 * bytes)) - 1);
}

constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15ULL;

// Megabytes are generated and checked while inferences are timed. Sanitizers cannot choose between clones, and other
// processors have only one instruction set.
#if defined(__clang__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
#define ATOLL_WIDE
#else
#define ATOLL_WIDE [[gnu::target_clones("avx512f", "avx2", "default"), gnu::optimize("O3")]]
#endif

// Fills the bytes of a row after its signature.
std::uint64_t word(std::uint64_t place) {
  place ^= place >> 29;
  return place ^ (place << 17);
}

ATOLL_WIDE
void fill_words(std::uint64_t signature, std::byte* out, std::size_t words) {
  std::uint64_t place = signature;
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t value = i == 0 ? signature : word(place);
    std::memcpy(out + 8 * i, &value, 8);
    place += kStep;
  }
}

ATOLL_WIDE
std::uint64_t wrong_bits(std::uint64_t signature, const std::byte* row, std::size_t words) {
  std::uint64_t wrong = 0;
  std::uint64_t place = signature;
  for (std::size_t i = 1; i < words; ++i) {
    std::uint64_t there = 0;
    std::memcpy(&there, row + 8 * i, 8);
    place += kStep;
    wrong |= there ^ word(place);
  }
  return wrong;
}

bool are_zeros(const std::byte* row, std::size_t bytes) {
  return bytes == 0 || (row[0] == std::byte{0} && std::memcmp(row, row + 1, bytes - 1) == 0);
}

// Zeros have the signature 0, because models are timed with them.
void fill_row(std::uint64_t signature, std::byte* out, std::size_t bytes) {
  if (signature == 0) {
    std::memset(out, 0, bytes);
    return;
  }
  const std::size_t words = bytes / 8;
  fill_words(signature, out, words);
  const std::uint64_t last = words == 0 ? signature : word(signature + words * kStep);
  std::memcpy(out + 8 * words, &last, bytes - 8 * words);
}

// Returns whether a row is what fill_row() makes of its beginning.
bool is_filled(const std::byte* row, std::size_t bytes) {
  std::uint64_t signature = 0;
  std::memcpy(&signature, row, std::min<std::size_t>(bytes, 8));
  if (signature == 0) return are_zeros(row, bytes);
  const std::size_t words = bytes / 8;
  const std::uint64_t last = words == 0 ? signature : word(signature + words * kStep);
  return wrong_bits(signature, row, words) == 0 && std::memcmp(row + 8 * words, &last, bytes - 8 * words) == 0;
}

// Adds the time until it is destroyed.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  const Clock::time_point begin_ = Clock::now();
};

// Sleeps, and polls the clock for the last moments.
void sleep_until(Clock::time_point due) {
  constexpr std::chrono::microseconds kWakeUp{80};
  [[maybe_unused]] static thread_local const int is_precise = ::prctl(PR_SET_TIMERSLACK, 1UL);
  const auto sleep = std::chrono::duration_cast<std::chrono::nanoseconds>(due - kWakeUp - Clock::now());
  if (sleep.count() > 0) {
    timespec span{sleep.count() / 1'000'000'000, sleep.count() % 1'000'000'000};
    while (::nanosleep(&span, &span) != 0 && errno == EINTR) {
    }
  }
  while (Clock::now() < due) {
  }
}

Region scaled(std::int64_t row, std::int64_t from, std::int64_t to) {
  return {row * from / to, ((row + 1) * from + to - 1) / to};
}

// Adds the signatures of the rows of one operand, which has `from` rows and is available as far as it is needed, to
// those of rows `rows` of `to`.
void add_operand(const Signatures& given, std::int64_t from, bool is_by_rows, Region rows, std::int64_t to,
                 Signatures& signatures) {
  const auto fold = [&](std::uint64_t signature, Region needed, std::int64_t first) {
    for (std::int64_t each = needed.begin; each < needed.end; ++each) {
      signature = mixed(signature * 3 + given.at(static_cast<std::size_t>(each - first)));
    }
    return signature;
  };
  const std::uint64_t all = is_by_rows ? 0 : fold(0, {0, from}, 0);
  const std::int64_t first = scaled(rows.begin, from, to).begin;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    std::uint64_t& signature = signatures[static_cast<std::size_t>(row - rows.begin)];
    signature = is_by_rows ? fold(signature, scaled(row, from, to), first) : mixed(signature * 3 + all);
  }
}

}  // namespace

ModelledRunner::ModelledRunner(Machine machine, double speed) : machine_(machine), speed_(speed) {
  register_layer_rule();
}

std::unique_ptr<Call> ModelledRunner::prepare(const Graph& graph, const Node& node) {
  if (node.op != kLayer) throw Error(ErrorKind::kUnavailable, node.name() + " is not modelled");
  auto layer = std::make_unique<Layer>();
  const int output = node.outputs.front();
  layer->salt = mixed(static_cast<std::uint64_t>(output));
  layer->output = graph.tensors.at(static_cast<std::size_t>(output));
  layer->by_rows = std::get<Ints>(node.args.at(kByRows));
  for (const int operand : operands_of(node)) {
    layer->operand_rows.push_back(graph.tensors.at(static_cast<std::size_t>(operand)).shape.front());
  }
  const auto& costs = std::get<Floats>(node.args.at(kCosts));
  const std::size_t first = machine_ == Machine::kRobot ? 0 : 2;
  layer->cost = {costs.at(first), costs.at(first + 1)};
  return layer;
}

std::vector<Value> ModelledRunner::run(const Call& call, std::span<const Value> operands,
                                       std::span<const Change> changes) {
  const Clock::time_point begin = Clock::now();
  const auto& layer = dynamic_cast<const Layer&>(call);
  Region rows{0, layer.output.shape.front()};
  for (const Change& change : changes) {
    if (change.argument != kRows) continue;
    const auto& ends = std::get<Ints>(change.value);
    rows = {ends.at(0), ends.at(1)};
  }
  Tensor type = layer.output;
  type.shape.front() = rows.size();
  Signatures signatures(static_cast<std::size_t>(rows.size()));
  for (std::size_t i = 0; i < operands.size(); ++i) {
    add_operand(of(operands[i]).signatures, layer.operand_rows.at(i), layer.by_rows.at(i) != 0, rows,
                layer.output.shape.front(), signatures);
  }
  for (std::size_t i = 0; i < signatures.size(); ++i) {
    const auto row = static_cast<std::uint64_t>(rows.begin) + i;
    signatures[i] = fitting(mixed(signatures[i] ^ layer.salt ^ mixed(row)), row_bytes(type));
  }
  const double seconds = layer.cost.seconds(rows.size());
  busy_seconds_ += seconds;
  if (speed_ > 0) {
    const std::chrono::duration<double> taken(seconds / speed_);
    free_ = std::max(free_, begin) + std::chrono::duration_cast<Clock::duration>(taken);
  }
  return {std::make_shared<ModelledTensor>(type, std::move(signatures), free_)};
}

Value ModelledRunner::from_host(const Tensor& type, const HostBytes& bytes) {
  const Stopwatch stopwatch(bytes_seconds_);
  if (bytes.bytes.size() != static_cast<std::size_t>(type.bytes())) {
    throw Error(ErrorKind::kInvalidArgument, "a tensor came with " + std::to_string(bytes.bytes.size()) + " bytes");
  }
  const std::size_t width = row_bytes(type);
  Signatures signatures(static_cast<std::size_t>(type.shape.front()));
  for (std::size_t row = 0; row < signatures.size(); ++row) {
    const std::byte* there = bytes.bytes.data() + row * width;
    std::memcpy(&signatures[row], there, std::min<std::size_t>(width, 8));
    if (!is_filled(there, width)) {
      throw Error(ErrorKind::kInternal, "row " + std::to_string(row) + " of a tensor arrived changed");
    }
  }
  return std::make_shared<ModelledTensor>(type, std::move(signatures), Clock::time_point{}, bytes);
}

HostBytes ModelledRunner::to_host(const Value& value) {
  const ModelledTensor& tensor = of(value);
  sleep_until(tensor.ready);
  if (tensor.host.owner) return tensor.host;  // as when processors share memory
  const Stopwatch stopwatch(bytes_seconds_);
  const std::size_t width = row_bytes(tensor.type);
  auto bytes = std::make_shared<std::vector<std::byte>>(width * tensor.signatures.size());
  for (std::size_t row = 0; row < tensor.signatures.size(); ++row) {
    fill_row(tensor.signatures[row], bytes->data() + row * width, width);
  }
  return {*bytes, bytes};
}

Tensor ModelledRunner::type_of(const Value& value) const { return of(value).type; }

Value ModelledRunner::narrow(const Value& value, int, Region rows) {
  const ModelledTensor& whole = of(value);
  Tensor type = whole.type;
  type.shape.front() = rows.size();
  HostBytes host = whole.host;
  if (host.owner) {
    const auto begin = static_cast<std::size_t>(rows.begin) * row_bytes(type);
    host.bytes = host.bytes.subspan(begin, static_cast<std::size_t>(rows.size()) * row_bytes(type));
  }
  return std::make_shared<ModelledTensor>(
      type, Signatures(whole.signatures.begin() + rows.begin, whole.signatures.begin() + rows.end), whole.ready,
      std::move(host));
}

Value ModelledRunner::join(std::span<const Value> parts, int) {
  Tensor type = of(parts.front()).type;
  Signatures signatures;
  Clock::time_point ready{};
  for (const Value& part : parts) {
    ready = std::max(ready, of(part).ready);
    signatures.insert(signatures.end(), of(part).signatures.begin(), of(part).signatures.end());
  }
  type.shape.front() = static_cast<std::int64_t>(signatures.size());
  return std::make_shared<ModelledTensor>(type, std::move(signatures), ready);
}

bool ModelledRunner::wait_until(Deadline until) {
  sleep_until(std::min(free_, until.when()));
  return Clock::now() >= free_;
}

Value ModelledRunner::pad(const Value&, int, std::int64_t, std::int64_t, double) {
  throw Error(ErrorKind::kInternal, "modelled layers have no borders");
}

std::string ModelledRunner::device() const {
  return machine_ == Machine::kRobot ? "modelled robot" : "modelled server";
}

std::vector<std::byte> modelled_input(const Tensor& type, std::uint64_t seed) {
  const std::size_t width = row_bytes(type);
  std::vector<std::byte> bytes(width * static_cast<std::size_t>(type.shape.front()));
  for (std::size_t row = 0; row * width < bytes.size(); ++row) {
    fill_row(fitting(mixed(seed * 1'000'003 + row), width), bytes.data() + row * width, width);
  }
  return bytes;
}

}  // namespace atl::infer::test
