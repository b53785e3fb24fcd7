// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/infer/run/program.h"
#include "atoll/infer/run/runner.h"

namespace atl::infer {

/// A graph with its weights on one device, ready to run, with constant nodes computed. Used by one thread at a time.
class LoadedModel {
 public:
  /// `weights` by name, as the graph describes them; their bytes are kept and may be used in place. Throws
  /// Error(kProtocol) for a weight that is missing or has another size, and as OperatorRunner::prepare does.
  LoadedModel(Graph graph, const std::map<std::string, HostBytes>& weights, std::shared_ptr<OperatorRunner> runner);

  const Graph& graph() const noexcept { return graph_; }
  OperatorRunner& runner() const noexcept { return *runner_; }
  const Call& call(int node) const { return *calls_.at(static_cast<std::size_t>(node)); }
  /// The value of a weight or a constant; null for other tensors.
  const Value& constant(int tensor) const { return constants_.at(static_cast<std::size_t>(tensor)); }
  /// slice(), cached: the same parts are computed in every inference.
  const SlicedCall& sliced(int node, int dim, Region rows) const;

  /// A small graph with its prepared calls.
  struct Calls {
    Graph graph;
    std::vector<std::unique_ptr<Call>> calls;
    std::vector<int> uses;  ///< by tensor
  };
  /// The graph for a part of a node that needs sums (Partial): its result from `parts` states, or for 0 its state.
  const Calls& part_calls(const Operators::State& state, std::int64_t parts, std::int64_t rows) const;

 private:
  void compute_constant(int node);

  Graph graph_;
  std::shared_ptr<OperatorRunner> runner_;
  std::vector<std::unique_ptr<Call>> calls_;
  std::vector<Value> constants_;
  mutable std::map<std::tuple<int, int, std::int64_t, std::int64_t>, SlicedCall>
      sliced_;  // by node, dimension and rows
  mutable std::map<std::tuple<int, int, std::int64_t, std::int64_t>, Calls>
      partial_;  // by node, dimension, parts and rows
};

/// The other side of an inference.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// Queues rows of a tensor to send and returns at once; the bytes must not change until they are sent. A lost link
  /// accepts them too, and throws in receive.
  virtual void send(int tensor, Region rows, HostBytes bytes) = 0;
  /// Waits until all of these rows have arrived and returns their bytes; none when `until` has passed. Throws the
  /// link's Error.
  virtual std::optional<HostBytes> receive(int tensor, Region rows, Deadline until) = 0;
};

/// The exchange of a program without another side. Both functions throw Error(kInternal).
Exchange& no_exchange();

/// One inference on one side. Holds tensors as pieces of rows and frees them when the program says so.
class Inference {
 public:
  /// The operators must be those of the model's graph. Borrows everything.
  Inference(const LoadedModel& model, const Operators& operators);

  void set_input(int tensor, Value value);

  /// Returns whether to continue. Called before every step, and at least every millisecond while a receive waits.
  using GoOn = std::function<bool()>;
  /// Runs the steps. Returns false if `go_on` returned false; the steps before that have been done. Throws what the
  /// runner and the exchange throw.
  bool run(const Program& program, Exchange& exchange, const GoOn& go_on = {});

  /// Adds the rows that another inference of the same model and operators holds.
  void add(const Inference& other);

  /// By tensor, the rows that are held, in order.
  std::vector<std::vector<Region>> held() const;
  /// A whole tensor, joined from its pieces. Throws Error(kInternal) if rows are missing.
  Value whole(int tensor);

 private:
  struct Piece {
    Region rows;
    Value value;
  };
  void compute(int node, Region rows);
  void compute_state(int node, Region rows);
  void compute_result(int node, Region rows);
  void keep(int tensor, Region rows, Value value);
  Value piece(int tensor, Region rows);
  std::vector<Value> operands_of(const SlicedCall& call);
  const Operators::State& state_of(int node) const;
  std::vector<Value> taken(const Operators::State& state, const std::vector<Partial::Taken>& what, Region rows);
  Value made_by(const LoadedModel::Calls& calls, const std::vector<Value>& inputs) const;
  bool receive(int tensor, Region rows, Exchange& exchange, const GoOn& go_on);
  bool is_whole(int tensor) const;
  std::string name_of(int node) const;

  const LoadedModel& model_;
  const Operators& operators_;
  std::vector<std::vector<Piece>> pieces_;
};

}  // namespace atl::infer
