// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/worker/worker.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "atoll/infer/run/measure.h"
#include "atoll/infer/wire/messages.h"
#include "atoll/infer/worker/socket_sender.h"
#include "atoll/infer/worker/step_admission.h"
#include "tests/infer/run/cases.h"
#include "tests/support/graph_text.h"

namespace atl::infer::test {
namespace {

// Tensors without content: every call makes what its node declares, and is recorded.
class TypeRunner final : public OperatorRunner {
 public:
  std::unique_ptr<Call> prepare(const Graph& graph, const Node& node) override {
    auto call = std::make_unique<TypeCall>();
    call->name = node.name();
    for (const int output : node.outputs) call->makes.push_back(graph.tensors.at(static_cast<std::size_t>(output)));
    return call;
  }
  std::vector<Value> run(const Call& call, std::span<const Value>, std::span<const Change>) override {
    const auto& of = static_cast<const TypeCall&>(call);
    {
      const std::lock_guard lock(mutex_);
      ran_.insert(of.name);
    }
    std::vector<Value> made;
    for (const Tensor& type : of.makes) made.push_back(value(type));
    return made;
  }
  Value from_host(const Tensor& type, const HostBytes&) override { return value(type); }
  HostBytes to_host(const Value&) override { return {}; }
  Tensor type_of(const Value& of) const override { return static_cast<const Typed&>(*of).type; }
  Value narrow(const Value& of, int dim, Region rows) override {
    Tensor type = type_of(of);
    type.shape.at(static_cast<std::size_t>(dim)) = rows.size();
    return value(type);
  }
  Value join(std::span<const Value> parts, int dim) override {
    Tensor type = type_of(parts.front());
    type.shape.at(static_cast<std::size_t>(dim)) *= static_cast<std::int64_t>(parts.size());
    return value(type);
  }
  Value pad(const Value& of, int, std::int64_t, std::int64_t, double) override { return of; }
  bool wait_until(Deadline) override { return true; }
  std::string device() const override { return "cpu"; }

  bool has_run(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    return ran_.contains(name);
  }

 private:
  struct Typed final : DeviceTensor {
    explicit Typed(Tensor of) : type(std::move(of)) {}
    const Tensor type;
  };
  struct TypeCall final : Call {
    std::string name;
    std::vector<Tensor> makes;
  };
  static Value value(const Tensor& type) { return std::make_shared<const Typed>(type); }

  mutable std::mutex mutex_;
  std::set<std::string> ran_;
};

// A worker in a thread, and the server's end of its socket.
class WorkerThread {
 public:
  WorkerThread(std::shared_ptr<OperatorRunner> runner, WorkerOptions options) : options_(std::move(options)) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    socket_ = Fd(ends[0]);
    Fd weights(::memfd_create("weights", MFD_CLOEXEC));
    const std::string none("\x02\0\0\0\0\0\0\0{}", 10);  // a safetensors file without tensors
    EXPECT_EQ(::write(weights.get(), none.data(), none.size()), static_cast<ssize_t>(none.size()));
    thread_ = std::thread([this, theirs = Fd(ends[1]), file = std::move(weights), runner]() mutable {
      run_worker(std::move(theirs), std::move(file), std::move(runner), options_);
    });
  }
  ~WorkerThread() {
    ::shutdown(socket_.get(), SHUT_RDWR);
    thread_.join();
  }

  void send(const wire::Message& message) { SocketSender(socket_.get()).send(message); }
  wire::Message next() {
    std::optional<wire::Message> found;
    std::array<std::byte, 4096> buffer{};
    while (!found) {
      const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
      if (count <= 0) throw Error(ErrorKind::kPeerLost, "the worker has ended");
      const auto take = [&](const wire::ReceivedFrame& frame) { found = wire::decode(frame.payload); };
      parser_.push({buffer.data(), static_cast<std::size_t>(count)}, take);
    }
    return *found;
  }

 private:
  WorkerOptions options_;
  Fd socket_;
  wire::FrameParser parser_;
  std::thread thread_;
};

// Its variance is of three rows: two of them, as numbers of 64 bits, take more memory than the whole in 16.
Graph with_a_large_state() {
  Builder builder;
  const int x = builder.input({3, 100}, Dtype::kFloat16);
  const int relu = builder.call("aten::relu", {TensorId{x}}, {3, 100}, Dtype::kFloat16);
  builder.output(builder.call("aten::var.correction", {TensorId{relu}, Ints{0, 1}, std::int64_t{0}, true}, {1, 1},
                              Dtype::kFloat16));
  return builder.graph();
}

wire::Ready timed(const std::shared_ptr<TypeRunner>& runner, std::int64_t most_bytes) {
  WorkerOptions options;
  options.profile_seconds = 1e-9;
  options.most_activation_bytes = most_bytes;
  WorkerThread worker(runner, options);
  wire::Open open;
  open.model = 1;
  worker.send(open);
  worker.send(wire::GraphText{1, to_json(with_a_large_state())});
  const wire::Message answer = worker.next();
  if (const auto* failed = std::get_if<wire::Failed>(&answer)) throw Error(failed->kind, failed->text);
  return std::get<wire::Ready>(answer);
}

TEST(Worker, PartsThatAreNotAdmittedAreNotTimed) {
  const auto free = std::make_shared<TypeRunner>();
  EXPECT_EQ(timed(free, 1 << 20).dim, 0);
  EXPECT_TRUE(free->has_run("aten::var_mean.correction"));  // of a part
  const auto bound = std::make_shared<TypeRunner>();
  const wire::Ready ready = timed(bound, 3100);
  EXPECT_FALSE(bound->has_run("aten::var_mean.correction"));
  EXPECT_TRUE(bound->has_run("aten::var.correction"));
  EXPECT_EQ(ready.input_tensor, -1);
  EXPECT_EQ(ready.dim, -1);
  EXPECT_EQ(ready.whole.size(), 2U);
}

// Records the calls with the types of their operands.
class Remembering final : public FakeRunner {
 public:
  std::vector<Value> run(const Call& call, std::span<const Value> operands, std::span<const Change> changes) override {
    std::string text = static_cast<const FakeCall&>(call).node.name();
    for (const Value& operand : operands) text += " " + to_string(type_of(operand));
    called.insert(text + " " + std::to_string(changes.size()));
    return FakeRunner::run(call, operands, changes);
  }
  std::set<std::string> called;
};

TEST(Worker, MeasuringCallsNothingButWholeNodesAndTheMeasuredParts) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Dice dice(seed);
    const Case any(dice, 12);
    const auto runner = std::make_shared<Remembering>();
    std::map<std::string, HostBytes> weights;
    for (const Weight& weight : any.graph.weights) {
      weights[weight.name] = runner->to_host(any.tensors[static_cast<std::size_t>(weight.tensor)]);
    }
    const LoadedModel model(any.graph, weights, runner);
    const Operators operators = operators_of(any.graph, any.image, 2);
    runner->called.clear();
    measure_profile(model, operators, 0);
    const std::set<std::string> measured = std::exchange(runner->called, {});
    for (const Node& node : any.graph.nodes) {
      std::vector<Value> operands;
      for (const int tensor : operands_of(node)) operands.push_back(any.tensors[static_cast<std::size_t>(tensor)]);
      runner->run(*runner->prepare(any.graph, node), operands, {});
    }
    Inference parts(model, operators);
    for (int tensor = 0; tensor < static_cast<int>(any.graph.tensors.size()); ++tensor) {
      const bool is_made = operators.operator_of[static_cast<std::size_t>(tensor)] >= 0;
      if (is_made) parts.set_input(tensor, any.tensors[static_cast<std::size_t>(tensor)]);
    }
    for (const Step& step : measured_parts(operators).steps) parts.run({{step}}, no_exchange());
    for (const std::string& call : measured) EXPECT_TRUE(runner->called.contains(call)) << seed << ": " << call;
  }
}

}  // namespace
}  // namespace atl::infer::test
