// SPDX-License-Identifier: Apache-2.0
// Collectives that move data without computing.
#include <ATen/core/LegacyTypeDispatch.h>

#include <optional>
#include <utility>

#include "atoll/pytorch/python/backend/backend.h"
#include "atoll/pytorch/python/backend/checks.h"
#include "atoll/pytorch/staging/dtype.h"

namespace atl::pytorch {

using collectives::Call;
using Kind = collectives::Operation;

namespace {

// A gather or scatter as its library gets it. Libraries take tensors of one shape only and find others on the root
// alone, when the other ranks have started. So it is an exchange, in which most ranks send or receive nothing, and what
// the root gives to itself is copied.
struct RootedExchange {
  RootedExchange(const at::Tensor& like, int size)
      : sent(static_cast<std::size_t>(size), at::empty({0}, like.options())), received(sent) {}

  WorkPtr issue(c10d::Backend& library, const c10d::AllToAllOptions& timed) {
    if (own && own->first.const_data_ptr() != own->second.const_data_ptr()) {
      const at::AutoDispatchBelowADInplaceOrView no_autograd;
      own->second.view({-1}).copy_(own->first.view({-1}), /*non_blocking=*/true);
    }
    return library.alltoall(received, sent, timed);
  }

  Tensors sent, received;
  std::optional<std::pair<at::Tensor, at::Tensor>> own;  // from, to
};

template <typename Opts>
c10d::AllToAllOptions exchange_options(const Opts& opts) {
  c10d::AllToAllOptions exchange;
  exchange.timeout = opts.timeout;
  exchange.asyncOp = opts.asyncOp;
  return exchange;
}

}  // namespace

WorkPtr BackendAtoll::issue_allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& opts) {
  const at::Tensor& input = only("all_gather", "input", inputs);
  const Tensors& parts = one_per_rank("all_gather", "output", outputs, size_);
  check_same_dtype("all_gather", input, parts);
  const at::Tensor& own = parts[static_cast<std::size_t>(rank_)];
  check_numel("all_gather", "this rank's output", input.numel(), own.numel());
  check_outputs("all_gather", parts);
  const at::Tensor source = apart(input, parts, is_part(input, own) ? own : at::Tensor());
  if (const auto library = pass_through_.for_list(parts)) {
    PlainTensors plain;
    Tensors list{plain.read(source)};
    std::vector<Tensors> results{plain.write(parts)};
    return pass_through_.issue(library, plain, opts, [&](c10d::Backend& inner, const auto& timed) {
      return inner.allgather(results, list, timed);
    });
  }
  const About about{c10d::OpType::ALLGATHER, "atoll:all_gather", opts.timeout, opts.asyncOp};
  Operands operands;
  Call call = call_for(Kind::kAllGather, about, wire_type(input.scalar_type()));
  call.input = {operands.read(source)};
  for (const at::Tensor& part : parts) call.output.push_back(operands.write(part));
  return issue(about, std::move(call), std::move(operands), inputs, parts);
}

WorkPtr BackendAtoll::issue_allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& opts) {
  constexpr const char* kName = "all_gather_coalesced";
  check_tensors(kName, inputs);
  TORCH_CHECK_VALUE(outputs.size() == static_cast<std::size_t>(size_), kName,
                    ": expected one output list for each of the ", size_, " ranks, got ", outputs.size());
  const About about{c10d::OpType::ALLGATHER_COALESCED, "atoll:all_gather", opts.timeout, opts.asyncOp};
  Operands operands;
  std::vector<Call> calls;
  Tensors flat;
  for (const Tensors& list : outputs) {
    check_same_length(kName, list.size(), inputs.size());
    check_tensors(kName, list);
    flat.insert(flat.end(), list.begin(), list.end());
  }
  check_outputs(kName, flat);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Call& call = calls.emplace_back(call_for(Kind::kAllGather, about, wire_type(inputs[i].scalar_type())));
    const at::Tensor& own = outputs[static_cast<std::size_t>(rank_)][i];
    call.input = {operands.read(apart(inputs[i], flat, is_part(inputs[i], own) ? own : at::Tensor()))};
    for (const Tensors& list : outputs) {
      check_same_dtype(kName, inputs[i], list[i]);
      check_numel(kName, "an output", inputs[i].numel(), list[i].numel());
      call.output.push_back(operands.write(list[i]));
    }
  }
  return issue(about, std::move(calls), std::move(operands), inputs, std::move(flat));
}

WorkPtr BackendAtoll::issue_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return issue_allgather_into_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr BackendAtoll::issue_allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions& opts) {
  constexpr const char* kName = "all_gather_into_tensor";
  check_same_length(kName, outputs.size(), inputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    check_tensor(kName, outputs[i]);
    check_tensor(kName, inputs[i]);
    check_same_dtype(kName, outputs[i], inputs[i]);
    check_numel(kName, "the output (as many times the input's as there are ranks)", inputs[i].numel() * size_,
                outputs[i].numel());
  }
  check_outputs(kName, outputs);
  Tensors sources;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool in_place = is_part(inputs[i], outputs[i], rank_);
    sources.push_back(apart(inputs[i], outputs, in_place ? outputs[i] : at::Tensor()));
  }
  if (const auto library = pass_through_.for_whole(inputs)) {
    PlainTensors plain;
    Tensors results = plain.write(outputs);
    Tensors list = plain.read(sources);
    return pass_through_.issue_each(library, plain, opts, list.size(),
                                    [&](c10d::Backend& inner, const auto& timed, std::size_t i) {
                                      return inner._allgather_base(results[i], list[i], timed);
                                    });
  }
  const auto type = outputs.size() == 1 ? c10d::OpType::_ALLGATHER_BASE : c10d::OpType::ALLGATHER_COALESCED;
  const About about{type, "atoll:_all_gather_base", opts.timeout, opts.asyncOp};
  Operands operands;
  std::vector<Call> calls;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    Call& call = calls.emplace_back(call_for(Kind::kAllGather, about, wire_type(inputs[i].scalar_type())));
    call.input = {operands.read(sources[i])};
    call.output = cut_equally(operands.write(outputs[i]), size_);
  }
  return issue(about, std::move(calls), std::move(operands), inputs, outputs);
}

WorkPtr BackendAtoll::issue_gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  const at::Tensor& input = only("gather", "input", inputs);
  check_rank("gather", "root", opts.rootRank, size_);
  const bool is_root = opts.rootRank == rank_;
  Tensors results;
  at::Tensor source = input;
  if (is_root) {
    results = one_per_rank("gather", "output", outputs, size_);
    check_same_dtype("gather", input, results);
    const at::Tensor& own = results[static_cast<std::size_t>(rank_)];
    check_numel("gather", "the root's own output", input.numel(), own.numel());
    check_outputs("gather", results);
    source = apart(input, results, is_part(input, own) ? own : at::Tensor());
  } else {
    TORCH_CHECK_VALUE(outputs.empty(), "gather: outputs were given on rank ", rank_, ", which is not the root ",
                      opts.rootRank);
  }
  if (const auto library = pass_through_.for_rooted(input)) {
    PlainTensors plain;
    const at::Tensor mine = plain.read(source);
    RootedExchange exchange(mine, size_);
    if (is_root) {
      exchange.received = plain.write(results);
      exchange.own.emplace(mine, std::exchange(exchange.received[static_cast<std::size_t>(rank_)], exchange.sent[0]));
    } else {
      exchange.sent[static_cast<std::size_t>(opts.rootRank)] = mine;
    }
    return pass_through_.issue(library, plain, exchange_options(opts),
                               [&](c10d::Backend& inner, const auto& timed) { return exchange.issue(inner, timed); });
  }
  const About about{c10d::OpType::GATHER, "atoll:gather", opts.timeout, opts.asyncOp};
  Operands operands;
  Call call = call_for(Kind::kGather, about, wire_type(input.scalar_type()));
  call.root = static_cast<int>(opts.rootRank);
  call.input = {operands.read(source)};
  for (const at::Tensor& part : results) call.output.push_back(operands.write(part));
  return issue(about, std::move(call), std::move(operands), inputs, std::move(results));
}

WorkPtr BackendAtoll::issue_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) {
  const at::Tensor& output = only("scatter", "output", outputs);
  check_rank("scatter", "root", opts.rootRank, size_);
  check_output("scatter", output);
  const bool is_root = opts.rootRank == rank_;
  Tensors parts;
  if (is_root) {
    parts = one_per_rank("scatter", "input", inputs, size_);
    check_same_dtype("scatter", output, parts);
    check_numel("scatter", "the root's own input", output.numel(), parts[static_cast<std::size_t>(rank_)].numel());
    parts = apart_each(parts, output, rank_);
  } else {
    TORCH_CHECK_VALUE(inputs.empty(), "scatter: inputs were given on rank ", rank_, ", which is not the root ",
                      opts.rootRank);
  }
  if (const auto library = pass_through_.for_rooted(output)) {
    PlainTensors plain;
    const at::Tensor mine = plain.write(output);
    RootedExchange exchange(mine, size_);
    if (is_root) {
      exchange.sent = plain.read(parts);
      exchange.own.emplace(std::exchange(exchange.sent[static_cast<std::size_t>(rank_)], exchange.received[0]), mine);
    } else {
      exchange.received[static_cast<std::size_t>(opts.rootRank)] = mine;
    }
    return pass_through_.issue(library, plain, exchange_options(opts),
                               [&](c10d::Backend& inner, const auto& timed) { return exchange.issue(inner, timed); });
  }
  const About about{c10d::OpType::SCATTER, "atoll:scatter", opts.timeout, opts.asyncOp};
  Operands operands;
  Call call = call_for(Kind::kScatter, about, wire_type(output.scalar_type()));
  call.root = static_cast<int>(opts.rootRank);
  for (const at::Tensor& part : parts) call.input.push_back(operands.read(part));
  call.output = {operands.write(output)};
  return issue(about, std::move(call), std::move(operands), parts, outputs);
}

WorkPtr BackendAtoll::issue_alltoall_base(at::Tensor& output, at::Tensor& input,
                                          std::vector<std::int64_t>& output_splits,
                                          std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  constexpr const char* kName = "all_to_all_single";
  check_tensor(kName, output);
  check_tensor(kName, input);
  check_same_dtype(kName, output, input);
  const auto sent = split_numels(kName, "input", input, input_splits, size_);
  const auto received = split_numels(kName, "output", output, output_splits, size_);
  const auto mine = static_cast<std::size_t>(rank_);
  check_numel(kName, "this rank's part of the output", sent[mine], received[mine]);
  check_output(kName, output);
  const at::Tensor source = apart(input, {output});
  if (const auto library = pass_through_.for_whole({input})) {
    PlainTensors plain;
    at::Tensor result = plain.write(output);
    at::Tensor whole = plain.read(source);
    return pass_through_.issue(library, plain, opts, [&](c10d::Backend& inner, const auto& timed) {
      return inner.alltoall_base(result, whole, output_splits, input_splits, timed);
    });
  }
  const About about{c10d::OpType::ALLTOALL_BASE, "atoll:all_to_all", opts.timeout, opts.asyncOp};
  Operands operands;
  Call call = call_for(Kind::kAllToAll, about, wire_type(input.scalar_type()));
  call.input = cut(operands.read(source), sent, input.element_size());
  call.output = cut(operands.write(output), received, output.element_size());
  return issue(about, std::move(call), std::move(operands), {input}, {output});
}

WorkPtr BackendAtoll::issue_alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  check_one_per_rank("all_to_all", "output", outputs, size_);
  check_one_per_rank("all_to_all", "input", inputs, size_);
  check_same_dtype("all_to_all", inputs[0], inputs);
  check_same_dtype("all_to_all", inputs[0], outputs);
  const auto mine = static_cast<std::size_t>(rank_);
  check_numel("all_to_all", "this rank's own output", inputs[mine].numel(), outputs[mine].numel());
  check_outputs("all_to_all", outputs);
  Tensors sources;
  for (const at::Tensor& input : inputs) sources.push_back(apart(input, outputs));
  if (const auto library = pass_through_.for_whole(inputs)) {
    PlainTensors plain;
    Tensors results = plain.write(outputs);
    Tensors list = plain.read(sources);
    return pass_through_.issue(library, plain, opts, [&](c10d::Backend& inner, const auto& timed) {
      return inner.alltoall(results, list, timed);
    });
  }
  const About about{c10d::OpType::ALLTOALL, "atoll:all_to_all", opts.timeout, opts.asyncOp};
  Operands operands;
  Call call = call_for(Kind::kAllToAll, about, wire_type(inputs[0].scalar_type()));
  for (const at::Tensor& source : sources) call.input.push_back(operands.read(source));
  for (const at::Tensor& part : outputs) call.output.push_back(operands.write(part));
  return issue(about, std::move(call), std::move(operands), inputs, outputs);
}

}  // namespace atl::pytorch
