// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/backend/backend.h"
#include "atoll/pytorch/python/backend/checks.h"
#include "atoll/pytorch/python/backend/sparse.h"
#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/staging/dtype.h"

namespace atl::pytorch {

using collectives::Call;
using Kind = collectives::Operation;

namespace {

void set_reduction(Call& call, const Reduction& how) {
  call.reduce_op = how.op;
  call.factor = how.factor;
}

}  // namespace

WorkPtr BackendAtoll::issue_broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const at::Tensor& tensor = only("broadcast", "tensor", tensors);
  check_rank("broadcast", "root", opts.rootRank, size_);
  TORCH_CHECK_VALUE(opts.rootTensor == 0, "broadcast: root tensor ", opts.rootTensor, " of a list of one");
  const bool is_root = opts.rootRank == rank_;
  if (!is_root) check_output("broadcast", tensor);
  const About about{c10d::OpType::BROADCAST, "atoll:broadcast", opts.timeout, opts.asyncOp};
  if (const auto library = pass_through_.for_whole(tensors)) {
    PlainTensors plain;
    Tensors list = is_root ? plain.read(tensors) : plain.write(tensors);
    return pass_through_.issue(library, plain, opts,
                               [&](c10d::Backend& inner, const auto& timed) { return inner.broadcast(list, timed); });
  }
  Operands operands;
  Call call = call_for(Kind::kBroadcast, about, wire_type(tensor.scalar_type()));
  call.root = static_cast<int>(opts.rootRank);
  call.input = {is_root ? operands.read(tensor) : operands.write(tensor)};
  call.output = call.input;
  return issue(about, std::move(call), std::move(operands), tensors, tensors);
}

WorkPtr BackendAtoll::issue_allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (tensors.size() == 1 && tensors[0].is_sparse()) return issue_allreduce_sparse(tensors, opts);
  const at::Tensor& tensor = only("all_reduce", "tensor", tensors);
  check_output("all_reduce", tensor);
  const Reduction how = reduction(opts.reduceOp);
  if (const auto library = pass_through_.for_whole(tensors, &how)) {
    PlainTensors plain;
    Tensors list = plain.write(tensors);
    return pass_through_.issue(library, plain, opts,
                               [&](c10d::Backend& inner, const auto& timed) { return inner.allreduce(list, timed); });
  }
  const About about{c10d::OpType::ALLREDUCE, "atoll:all_reduce", opts.timeout, opts.asyncOp};
  if (const auto library = pass_through_.for_scaled(tensor, how)) {
    PlainTensors plain;
    Tensors list = plain.write(tensors);
    return pass_through_.issue_scaled(
        library, plain, opts, about, how, list, list,
        [&](c10d::Backend& inner, const auto& summing) { return inner.allreduce(list, summing); });
  }
  Operands operands;
  Call call = call_for(Kind::kAllReduce, about, reduced_type("all_reduce", tensor, how));
  set_reduction(call, how);
  call.input = call.output = {operands.write(tensor, /*load=*/true)};
  return issue(about, std::move(call), std::move(operands), tensors, tensors);
}

WorkPtr BackendAtoll::issue_allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  check_tensors("all_reduce_coalesced", tensors);
  check_outputs("all_reduce_coalesced", tensors);
  const Reduction how = reduction(opts.reduceOp);
  if (const auto library = pass_through_.for_whole(tensors, &how)) {
    PlainTensors plain;
    const Tensors list = plain.write(tensors);
    const c10d::AllreduceOptions plain_opts(opts);
    return pass_through_.issue_each(library, plain, plain_opts, list.size(),
                                    [&](c10d::Backend& inner, const auto& timed, std::size_t i) {
                                      Tensors one{list[i]};
                                      return inner.allreduce(one, timed);
                                    });
  }
  const About about{c10d::OpType::ALLREDUCE_COALESCED, "atoll:all_reduce", opts.timeout, opts.asyncOp};
  Operands operands;
  std::vector<Call> calls;
  for (const at::Tensor& tensor : tensors) {
    Call& call =
        calls.emplace_back(call_for(Kind::kAllReduce, about, reduced_type("all_reduce_coalesced", tensor, how)));
    set_reduction(call, how);
    call.input = call.output = {operands.write(tensor, /*load=*/true)};
  }
  return issue(about, std::move(calls), std::move(operands), tensors, tensors);
}

WorkPtr BackendAtoll::issue_allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "all_reduce: the tensor list must hold one sparse tensor, it holds ",
                    tensors.size());
  TORCH_CHECK_VALUE(opts.reduceOp == c10d::ReduceOp::SUM, "all_reduce: sparse tensors can be summed only");
  const auto group = this->group();
  auto work = open_->new_work({c10d::OpType::_ALLREDUCE_SPARSE, "atoll:sparse_all_reduce", opts.timeout, false},
                              Operands(), tensors, tensors);
  std::exception_ptr error;
  try {
    // The sizes of the later exchanges depend on the first one, and some ranks may issue their next operation before
    // others have finished this one. So it runs synchronously whatever asyncOp is, which keeps the order equal on all
    // ranks.
    all_reduce_sparse(*group, tensors[0], opts.timeout);
  } catch (...) {
    error = std::current_exception();
  }
  work->done_on_caller(error);
  return work;
}

WorkPtr BackendAtoll::issue_reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const at::Tensor& tensor = only("reduce", "tensor", tensors);
  check_rank("reduce", "root", opts.rootRank, size_);
  TORCH_CHECK_VALUE(opts.rootTensor == 0, "reduce: root tensor ", opts.rootTensor, " of a list of one");
  const bool is_root = opts.rootRank == rank_;
  if (is_root) check_output("reduce", tensor);
  const Reduction how = reduction(opts.reduceOp);
  if (const auto library = pass_through_.for_whole(tensors, &how)) {
    PlainTensors plain;
    Tensors list = is_root ? plain.write(tensors) : plain.read(tensors);
    // Gloo overwrites the inputs of the other ranks.
    if (!is_root && tensor.device().is_cpu() && list[0].is_same(tensor)) list[0] = tensor.detach().clone();
    return pass_through_.issue(library, plain, opts,
                               [&](c10d::Backend& inner, const auto& timed) { return inner.reduce(list, timed); });
  }
  const About about{c10d::OpType::REDUCE, "atoll:reduce", opts.timeout, opts.asyncOp};
  Operands operands;
  Call call = call_for(Kind::kReduce, about, reduced_type("reduce", tensor, how));
  set_reduction(call, how);
  call.root = static_cast<int>(opts.rootRank);
  if (is_root) {
    call.input = call.output = {operands.write(tensor, /*load=*/true)};
  } else {
    call.input = {operands.read(tensor)};
  }
  return issue(about, std::move(call), std::move(operands), tensors, tensors);
}

WorkPtr BackendAtoll::issue_reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                           const c10d::ReduceScatterOptions& opts) {
  const at::Tensor& output = only("reduce_scatter", "output", outputs);
  check_output("reduce_scatter", output);
  const Tensors& given = one_per_rank("reduce_scatter", "input", inputs, size_);
  check_same_dtype("reduce_scatter", output, given);
  check_numel("reduce_scatter", "the output", given[static_cast<std::size_t>(rank_)].numel(), output.numel());
  const Tensors parts = apart_each(given, output, rank_);
  const Reduction how = reduction(opts.reduceOp);
  if (const auto library = pass_through_.for_list(parts, &how)) {
    PlainTensors plain;
    Tensors results = plain.write(outputs);
    std::vector<Tensors> lists{plain.read(parts)};
    return pass_through_.issue(library, plain, opts, [&](c10d::Backend& inner, const auto& timed) {
      return inner.reduce_scatter(results, lists, timed);
    });
  }
  const About about{c10d::OpType::REDUCE_SCATTER, "atoll:reduce_scatter", opts.timeout, opts.asyncOp};
  Operands operands;
  Call call = call_for(Kind::kReduceScatter, about, reduced_type("reduce_scatter", output, how));
  set_reduction(call, how);
  for (const at::Tensor& part : parts) call.input.push_back(operands.read(part));
  call.output = {operands.write(output)};
  return issue(about, std::move(call), std::move(operands), given, outputs);
}

WorkPtr BackendAtoll::issue_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::ReduceScatterOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return issue_reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr BackendAtoll::issue_reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                            const c10d::ReduceScatterOptions& opts) {
  constexpr const char* kName = "reduce_scatter_tensor";
  check_same_length(kName, outputs.size(), inputs.size());
  const Reduction how = reduction(opts.reduceOp);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    check_tensor(kName, outputs[i]);
    check_tensor(kName, inputs[i]);
    check_same_dtype(kName, outputs[i], inputs[i]);
    check_numel(kName, "the input (as many times the output's as there are ranks)", outputs[i].numel() * size_,
                inputs[i].numel());
  }
  check_outputs(kName, outputs);
  Tensors sources;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool in_place = is_part(outputs[i], inputs[i], rank_);
    sources.push_back(apart(inputs[i], outputs, in_place ? outputs[i] : at::Tensor()));
  }
  if (const auto library = pass_through_.for_whole(outputs, &how)) {
    PlainTensors plain;
    Tensors results = plain.write(outputs);
    Tensors list = plain.read(sources);
    return pass_through_.issue_each(library, plain, opts, list.size(),
                                    [&](c10d::Backend& inner, const auto& timed, std::size_t i) {
                                      return inner._reduce_scatter_base(results[i], list[i], timed);
                                    });
  }
  if (const auto library = outputs.size() == 1 ? pass_through_.for_scaled(outputs[0], how) : nullptr) {
    PlainTensors plain;
    Tensors results = plain.write(outputs);
    Tensors list = plain.read(sources);
    if (how.op == collectives::ReduceOp::kPremulSum && list[0].is_alias_of(inputs[0])) list[0] = list[0].clone();
    const About about{c10d::OpType::_REDUCE_SCATTER_BASE, "atoll:_reduce_scatter_base", opts.timeout, opts.asyncOp};
    return pass_through_.issue_scaled(library, plain, opts, about, how, list, results,
                                      [&](c10d::Backend& inner, const auto& summing) {
                                        return inner._reduce_scatter_base(results[0], list[0], summing);
                                      });
  }
  const auto type = outputs.size() == 1 ? c10d::OpType::_REDUCE_SCATTER_BASE : c10d::OpType::COALESCED;
  const About about{type, "atoll:_reduce_scatter_base", opts.timeout, opts.asyncOp};
  Operands operands;
  std::vector<Call> calls;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    Call& call = calls.emplace_back(call_for(Kind::kReduceScatter, about, reduced_type(kName, outputs[i], how)));
    set_reduction(call, how);
    call.input = cut_equally(operands.read(sources[i]), size_);
    call.output = {operands.write(outputs[i])};
  }
  return issue(about, std::move(calls), std::move(operands), inputs, outputs);
}

WorkPtr BackendAtoll::issue_barrier(const c10d::BarrierOptions& opts) {
  const About about{c10d::OpType::BARRIER, "atoll:barrier", opts.timeout, opts.asyncOp};
  Call call = call_for(Kind::kBarrier, about, collectives::DataType::kUInt8);
  call.reduce_op = collectives::ReduceOp::kBor;
  call.input = call.output = {{&barrier_byte_, 1}};
  return issue(about, std::move(call), {}, {}, {});
}

void BackendAtoll::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  translated([&] { group()->monitored_barrier(open_->timeout(opts.timeout), wait_all_ranks); });
}

}  // namespace atl::pytorch
