// SPDX-License-Identifier: Apache-2.0
// The entry points of torch.distributed's calls. A call that fails here on one rank, before anything has been issued,
// also ends on the others.
#include <new>

#include "atoll/pytorch/python/backend/backend.h"
#include "atoll/pytorch/python/backend/checks.h"
#include "atoll/pytorch/python/errors.h"

namespace atl::pytorch {
namespace {

thread_local std::uint64_t calls_entered = 0;

bool is_out_of_memory(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return true;
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

std::uint64_t BackendAtoll::entered_on_this_thread() noexcept { return calls_entered; }

template <typename Issue>
WorkPtr BackendAtoll::collective(Issue&& issue) {
  ++calls_entered;
  const auto group = open_->is_inherited() ? nullptr : open_->parts().group;
  const std::uint64_t number = group ? group->sequence() : 0;
  try {
    return issue();
  } catch (...) {
    if (group) give_up(*group, number, std::current_exception());
    throw;
  }
}

template <typename Issue>
WorkPtr BackendAtoll::message(int peer, int tag, bool sends, Issue&& issue) {
  ++calls_entered;
  try {
    return issue();
  } catch (...) {
    if (!open_->is_inherited()) report_refused_message(peer, tag, sends, text_of(std::current_exception()));
    throw;
  }
}

// All ranks know the group's own errors. A call that ran out of memory halfway would leave the others waiting.
void BackendAtoll::give_up(collectives::Group& group, std::uint64_t number, const std::exception_ptr& error) noexcept {
  try {
    if (group.error()) return;
    if (group.sequence() == number) return group.refuse(text_of(error));
    if (is_out_of_memory(error)) group.fail(Error(ErrorKind::kUnavailable, text_of(error)));
  } catch (const std::exception& broken) {
    group.fail(Error(ErrorKind::kUnavailable, std::string("an operation was given up: ") + broken.what()));
  }
}

void BackendAtoll::refuse(const std::string& why) {
  ++calls_entered;
  const auto group = open_->is_inherited() ? nullptr : open_->parts().group;
  if (group && !group->error()) group->refuse(why);
}

void BackendAtoll::refuse_message(int peer, int tag, bool sends, const std::string& why) {
  ++calls_entered;
  report_refused_message(peer, tag, sends, why);
}

void BackendAtoll::report_refused_message(int peer, int tag, bool sends, const std::string& why) {
  const auto group = open_->is_inherited() ? nullptr : open_->parts().group;
  const bool from_any = !sends && peer == collectives::kAnySource;
  const bool has_peer = peer >= 0 && peer < size_ && peer != rank_;
  if (!group || group->error() || tag < 0 || !(has_peer || from_any)) return;
  // The same choice as PassThrough::for_message makes for tensors on this rank's device, where the peer expects its
  // end.
  if (island_->get() && place_.device != "cpu" && !from_any && group->topology().same_island(rank_, peer)) {
    return group->refuse_committed_message(peer, sends, why);
  }
  const auto number = static_cast<std::uint64_t>(tag);
  sends ? group->refuse_send(peer, number, why) : group->refuse_receive(peer, number, why);
}

WorkPtr BackendAtoll::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  return collective([&] { return issue_broadcast(tensors, opts); });
}

WorkPtr BackendAtoll::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return collective([&] { return issue_allreduce(tensors, opts); });
}

WorkPtr BackendAtoll::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return collective([&] { return issue_allreduce_sparse(tensors, opts); });
}

WorkPtr BackendAtoll::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  return collective([&] { return issue_allreduce_coalesced(tensors, opts); });
}

WorkPtr BackendAtoll::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return collective([&] { return issue_reduce(tensors, opts); });
}

WorkPtr BackendAtoll::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return collective([&] { return issue_allgather(outputs, inputs, opts); });
}

WorkPtr BackendAtoll::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  return collective([&] { return issue_allgather_base(output, input, opts); });
}

WorkPtr BackendAtoll::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) {
  return collective([&] { return issue_allgather_coalesced(outputs, inputs, opts); });
}

WorkPtr BackendAtoll::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& opts) {
  return collective([&] { return issue_allgather_into_tensor_coalesced(outputs, inputs, opts); });
}

WorkPtr BackendAtoll::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  return collective([&] { return issue_gather(outputs, inputs, opts); });
}

WorkPtr BackendAtoll::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) {
  return collective([&] { return issue_scatter(outputs, inputs, opts); });
}

WorkPtr BackendAtoll::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                     const c10d::ReduceScatterOptions& opts) {
  return collective([&] { return issue_reduce_scatter(outputs, inputs, opts); });
}

WorkPtr BackendAtoll::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::ReduceScatterOptions& opts) {
  return collective([&] { return issue_reduce_scatter_base(output, input, opts); });
}

WorkPtr BackendAtoll::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const c10d::ReduceScatterOptions& opts) {
  return collective([&] { return issue_reduce_scatter_tensor_coalesced(outputs, inputs, opts); });
}

WorkPtr BackendAtoll::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                                    std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  return collective([&] { return issue_alltoall_base(output, input, output_splits, input_splits, opts); });
}

WorkPtr BackendAtoll::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  return collective([&] { return issue_alltoall(outputs, inputs, opts); });
}

WorkPtr BackendAtoll::barrier(const c10d::BarrierOptions& opts) {
  return collective([&] { return issue_barrier(opts); });
}

WorkPtr BackendAtoll::send(Tensors& tensors, int destination, int tag) {
  return message(destination, tag, /*sends=*/true, [&] { return issue_send(tensors, destination, tag); });
}

WorkPtr BackendAtoll::recv(Tensors& tensors, int source, int tag) {
  return message(source, tag, /*sends=*/false, [&] {
    check_rank("recv", "source", source, size_);
    return receive_from("atoll:recv", c10d::OpType::RECV, tensors, source, tag);
  });
}

WorkPtr BackendAtoll::recvAnysource(Tensors& tensors, int tag) {
  return message(collectives::kAnySource, tag, /*sends=*/false, [&] {
    return receive_from("atoll:recvAnySource", c10d::OpType::RECVANYSOURCE, tensors, collectives::kAnySource, tag);
  });
}

#ifdef C10D_BACKEND_HAS_HOOKS
// What Backend has in addition since torch 2.14. It forwards other new names to the old ones itself. Reconfiguration,
// windows and completion hooks are not supported, which Backend reports.
WorkPtr BackendAtoll::gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts) {
  return collective([&] {
    Tensors inputs{input};
    std::vector<Tensors> outputs;
    if (opts.rootRank == rank_) {
      TORCH_CHECK_VALUE(output.is_contiguous(), "gather_single: the output must be contiguous");
      check_numel("gather_single", "the root's output", input.numel() * size_, output.numel());
      Tensors& parts = outputs.emplace_back();
      const at::Tensor rows = output.view({size_, input.numel()});
      for (int rank = 0; rank < size_; ++rank) parts.push_back(rows.select(0, rank).view(input.sizes()));
    }
    return issue_gather(outputs, inputs, opts);
  });
}

void BackendAtoll::registerAbortHook(std::int64_t id, c10d::AbortHook hook) {
  const auto group = this->group();
  if (failure_hooks_->add(id, hook)) return group->when_failed([hooks = failure_hooks_] { hooks->call(); });
  if (getError() != c10d::ErrorType::SUCCESS) hook();  // it may have been added after the others were called
}

void BackendAtoll::unregisterAbortHook(std::int64_t id) { failure_hooks_->remove(id); }

#endif

}  // namespace atl::pytorch
