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

/// A graph with its weights on one device, ready to run. Constant nodes have been computed. Used by one thread at a time.
class LoadedModel {
 public:
  /// `weights` by name, as the graph describes them; their bytes are kept and may be used in place. Error(kProtocol) for a
  /// weight that is missing or has another size, and as OperatorRunner::prepare.
  LoadedModel(Graph graph, const std::map<std::string, HostBytes>& weights, std::shared_ptr<OperatorRunner> runner);

  const Graph& graph() const noexcept { return graph_; }
  OperatorRunner& runner() const noexcept { return *runner_; }
  const Call& call(int node) const { return *calls_.at(static_cast<std::size_t>(node)); }
  /// Of a weight or a constant; null otherwise.
  const Value& constant(int tensor) const { return constants_.at(static_cast<std::size_t>(tensor)); }
  /// slice(), remembered: the same parts are computed in every inference.
  const SlicedCall& sliced(int node, int dim, Region rows) const;

  /// A small graph with its calls, found once.
  struct Calls {
    Graph graph;
    std::vector<std::unique_ptr<Call>> calls;
    std::vector<int> uses;  ///< by tensor
  };
  /// Of a part of a node that needs sums (Partial): its state, and the result from as many states.
  const Calls& state_calls(const Operators::State& state, std::int64_t rows) const;
  const Calls& result_calls(const Operators::State& state, std::int64_t parts, std::int64_t rows) const;

 private:
  void compute_constant(int node);
  const Calls& found(const Operators::State& state, std::int64_t parts, std::int64_t rows) const;

  Graph graph_;
  std::shared_ptr<OperatorRunner> runner_;
  std::vector<std::unique_ptr<Call>> calls_;
  std::vector<Value> constants_;
  mutable std::map<std::tuple<int, int, std::int64_t, std::int64_t>, SlicedCall>
      sliced_;  // by node, dimension and rows
  mutable std::map<std::tuple<int, int, std::int64_t, std::int64_t>, Calls>
      partial_;  // by node, dimension, parts (0: of a state) and rows
};

/// The other side, as one inference sees it.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// Takes rows of a tensor to be sent. Returns at once; the bytes stay as they are until they are sent. A link that is gone
  /// takes them all the same, and says so in receive.
  virtual void send(int tensor, Region rows, HostBytes bytes) = 0;
  /// The bytes of these rows, once they are all there; none when `until` has passed. Throws the link's Error.
  virtual std::optional<HostBytes> receive(int tensor, Region rows, Deadline until) = 0;
};

/// Nobody: a program that exchanges nothing. Both functions are Error(kInternal).
Exchange& no_exchange();

/// One inference on one side. Holds the tensors as pieces of rows, frees them as the program says.
class Inference {
 public:
  /// The operators must be those of the model's graph. All are borrowed.
  Inference(const LoadedModel& model, const Operators& operators);

  void set_input(int tensor, Value value);

  /// Whether to go on, asked before every step and while a receive waits (at least every millisecond).
  using GoOn = std::function<bool()>;
  /// Runs the steps; false when `go_on` said no, and then the steps before that are done. Throws what the runner and the
  /// exchange throw.
  bool run(const Program& program, Exchange& exchange, const GoOn& go_on = {});

  /// Takes over what is there too, of the same model and operators.
  void add(const Inference& other);

  /// By tensor, the rows that are here, in order.
  std::vector<std::vector<Region>> held() const;
  /// A whole tensor, joined where it is in pieces; Error(kInternal) where rows are missing.
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
