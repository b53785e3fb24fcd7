// SPDX-License-Identifier: Apache-2.0
// Turns the operations of torch into calls of the library.
#include "atoll/sim/pytorch/process_group.h"
#include "atoll/sim/pytorch/runtime.h"

namespace atl::sim {

using Pg = ProcessGroupSimccl;

Pg::WorkPtr Pg::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  only("all_reduce", "tensor", tensors);
  c10d::AllreduceCoalescedOptions coalesced;
  coalesced.reduceOp = opts.reduceOp;
  coalesced.timeout = opts.timeout;
  coalesced.asyncOp = opts.asyncOp;
  return allreduce_coalesced(tensors, coalesced);
}

Pg::WorkPtr Pg::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  TORCH_CHECK_VALUE(!tensors.empty(), "all_reduce: the tensor list is empty");
  std::vector<Operands> all;
  for (const at::Tensor& tensor : tensors) {
    Operands& operands = all.emplace_back(Operation::kAllReduce, "all_reduce");
    operands.read(tensor);
    operands.set_reduction(opts.reduceOp);
  }
  const auto type = tensors.size() == 1 ? c10d::OpType::ALLREDUCE : c10d::OpType::ALLREDUCE_COALESCED;
  return issue(about_call(type, "simccl:all_reduce", opts), std::move(all), tensors, tensors);
}

Pg::WorkPtr Pg::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  Operands operands(Operation::kReduce, "reduce");
  operands.read(only("reduce", "tensor", tensors));
  operands.set_root("root", opts.rootRank, size_);
  operands.set_reduction(opts.reduceOp);
  return issue(about_call(c10d::OpType::REDUCE, "simccl:reduce", opts), {std::move(operands)}, tensors, tensors);
}

Pg::WorkPtr Pg::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  Operands operands(Operation::kBroadcast, "broadcast");
  operands.read(only("broadcast", "tensor", tensors));
  operands.set_root("root", opts.rootRank, size_);
  return issue(about_call(c10d::OpType::BROADCAST, "simccl:broadcast", opts), {std::move(operands)}, tensors, tensors);
}

Pg::WorkPtr Pg::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  Operands operands(Operation::kAllGather, "all_gather");
  operands.read(only("all_gather", "input", inputs));
  const Tensors& parts = one_per_rank("all_gather", "output", outputs, size_);
  operands.write(parts);
  operands.check_size("this rank's output", operands.call().input[0], operands.call().output[me()]);
  return issue(about_call(c10d::OpType::ALLGATHER, "simccl:all_gather", opts), {std::move(operands)}, inputs, parts);
}

Pg::WorkPtr Pg::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

Pg::WorkPtr Pg::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  constexpr const char* kName = "all_gather_into_tensor";
  TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(), kName, ": got ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs");
  std::vector<Operands> all;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Operands& operands = all.emplace_back(Operation::kAllGather, kName);
    operands.read(inputs[i]);
    operands.write_parts(outputs[i], {}, size_);
    operands.check_size("each rank's part of the output", operands.call().input[0], operands.call().output[0]);
  }
  const auto type = inputs.size() == 1 ? c10d::OpType::_ALLGATHER_BASE : c10d::OpType::ALLGATHER_COALESCED;
  return issue(about_call(type, "simccl:_all_gather_base", opts), std::move(all), inputs, outputs);
}

Pg::WorkPtr Pg::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) {
  Operands operands(Operation::kReduceScatter, "reduce_scatter");
  const Tensors& parts = one_per_rank("reduce_scatter", "input", inputs, size_);
  operands.read(parts);
  operands.write(only("reduce_scatter", "output", outputs));
  operands.set_reduction(opts.reduceOp);
  operands.check_size("the output", operands.call().input[me()], operands.call().output[0]);
  return issue(about_call(c10d::OpType::REDUCE_SCATTER, "simccl:reduce_scatter", opts), {std::move(operands)}, parts,
               outputs);
}

Pg::WorkPtr Pg::_reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

Pg::WorkPtr Pg::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                const c10d::ReduceScatterOptions& opts) {
  constexpr const char* kName = "reduce_scatter_tensor";
  TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(), kName, ": got ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs");
  std::vector<Operands> all;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Operands& operands = all.emplace_back(Operation::kReduceScatter, kName);
    operands.read_parts(inputs[i], {}, size_);
    operands.write(outputs[i]);
    operands.set_reduction(opts.reduceOp);
    operands.check_size("the output", operands.call().input[0], operands.call().output[0]);
  }
  const auto type = inputs.size() == 1 ? c10d::OpType::_REDUCE_SCATTER_BASE : c10d::OpType::COALESCED;
  return issue(about_call(type, "simccl:_reduce_scatter_base", opts), std::move(all), inputs, outputs);
}

Pg::WorkPtr Pg::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  Operands operands(Operation::kGather, "gather");
  operands.set_root("root", opts.rootRank, size_);
  operands.read(only("gather", "input", inputs));
  Tensors parts;
  if (rank_ == opts.rootRank) {
    parts = one_per_rank("gather", "output", outputs, size_);
    check_one_shape("gather", inputs[0], parts);
    operands.write(parts);
    operands.check_size("the root's own output", operands.call().input[0], operands.call().output[me()]);
  } else {
    TORCH_CHECK_VALUE(outputs.empty(), "gather: outputs were given on rank ", rank_, ", which is not the root ",
                      opts.rootRank);
  }
  return issue(about_call(c10d::OpType::GATHER, "simccl:gather", opts), {std::move(operands)}, inputs, parts);
}

Pg::WorkPtr Pg::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) {
  Operands operands(Operation::kScatter, "scatter");
  operands.set_root("root", opts.rootRank, size_);
  operands.write(only("scatter", "output", outputs));
  Tensors parts;
  if (rank_ == opts.rootRank) {
    parts = one_per_rank("scatter", "input", inputs, size_);
    check_one_shape("scatter", outputs[0], parts);
    operands.read(parts);
    operands.check_size("the root's own input", operands.call().output[0], operands.call().input[me()]);
  } else {
    TORCH_CHECK_VALUE(inputs.empty(), "scatter: inputs were given on rank ", rank_, ", which is not the root ",
                      opts.rootRank);
  }
  return issue(about_call(c10d::OpType::SCATTER, "simccl:scatter", opts), {std::move(operands)}, parts, outputs);
}

Pg::WorkPtr Pg::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                              std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  Operands operands(Operation::kAllToAll, "all_to_all_single");
  operands.read_parts(input, input_splits, size_);
  operands.write_parts(output, output_splits, size_);
  operands.check_apart();
  operands.check_size("this rank's part of the output", operands.call().input[me()], operands.call().output[me()]);
  return issue(about_call(c10d::OpType::ALLTOALL_BASE, "simccl:all_to_all", opts), {std::move(operands)}, {input},
               {output});
}

Pg::WorkPtr Pg::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  Operands operands(Operation::kAllToAll, "all_to_all");
  check_one_per_rank("all_to_all", "input", inputs, size_);
  check_one_per_rank("all_to_all", "output", outputs, size_);
  operands.read(inputs);
  operands.write(outputs);
  operands.check_apart();
  operands.check_size("this rank's own output", operands.call().input[me()], operands.call().output[me()]);
  return issue(about_call(c10d::OpType::ALLTOALL, "simccl:all_to_all", opts), {std::move(operands)}, inputs, outputs);
}

Pg::WorkPtr Pg::barrier(const c10d::BarrierOptions& opts) {
  Operands operands(Operation::kBarrier, "barrier");
  c10::DeviceIndex index = current_device();
  if (!opts.device_ids.empty()) index = static_cast<c10::DeviceIndex>(opts.device_ids.front());
  if (opts.device && opts.device->type() == kSim && opts.device->has_index()) index = opts.device->index();
  device(index);  // throws if it does not exist
  operands.set_device(index);
  return issue(about_call(c10d::OpType::BARRIER, "simccl:barrier", opts), {std::move(operands)}, {}, {});
}

Pg::WorkPtr Pg::send_or_receive(bool sends, Tensors& tensors, int peer) {
  const char* const name = sends ? "send" : "recv";
  Operands operands(sends ? Operation::kSend : Operation::kReceive, name);
  const at::Tensor& tensor = only(name, "tensor", tensors);
  operands.set_root(sends ? "destination" : "source", peer, size_);
  sends ? operands.read(tensor) : operands.write(tensor);
  return issue(
      {sends ? c10d::OpType::SEND : c10d::OpType::RECV, sends ? "simccl:send" : "simccl:recv", c10d::kUnsetTimeout,
       /*async=*/true},
      {std::move(operands)}, tensors, sends ? Tensors{} : tensors);
}

Pg::WorkPtr Pg::send(Tensors& tensors, int destination, int /*tag*/) {
  return send_or_receive(true, tensors, destination);
}

Pg::WorkPtr Pg::recv(Tensors& tensors, int source, int /*tag*/) { return send_or_receive(false, tensors, source); }

}  // namespace atl::sim
