// SPDX-License-Identifier: Apache-2.0
//
// The promises of groups over devices, each proven by the tests that docs/promises.md names:
// D-1: A training on accelerators of several islands gives the bits of the same training on CPUs.
// D-2: In one call, each rank's tensors may be on a device of its own kind: results are those of CPUs.
// D-3: Issuing an asynchronous operation does not wait for the device.
// D-4: The ranks of an island issue the steps of their library in one order, none before all of its ranks are ready.
// D-5: A device or library that fails is an exception before any of its wrong values can be used.
// D-6: A thread that has got the exception of a failed group is not interrupted by a second one.
// D-7: With a library, too, a rank's death is an exception on all others within 2 s; silence, within the heartbeat plus
//   1 s.
// D-8: A tensor of any kind gives the right values or an error on every rank, never wrong values.
// D-9: Capturing a collective into a graph is an error that says so, and the group continues.
#pragma once

#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "atoll/collectives/group/group.h"
#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/python/backend/failure_hooks.h"
#include "atoll/pytorch/python/backend/group_staging.h"
#include "atoll/pytorch/python/backend/island_library.h"
#include "atoll/pytorch/python/backend/island_messages.h"
#include "atoll/pytorch/python/backend/open_group.h"
#include "atoll/pytorch/python/backend/pass_through.h"
#include "atoll/pytorch/python/backend/regions.h"
#include "atoll/pytorch/staging/library.h"
#include "atoll/pytorch/staging/operands.h"

namespace atl::pytorch {

/// A process group of torch.distributed over collectives::Group. Tensors are on the CPU, or on an accelerator, which
/// copies them to the host and back; those of one call are on one device, which may differ between ranks. If the vendor
/// has a library for an island, it does the island's part, or the whole operation when all ranks are one island. All
/// functions are thread-safe; collectives must be issued in the same order on all ranks. With asyncOp == false a
/// collective runs on the calling thread and its Work is complete. Invalid arguments throw ValueError or TypeError
/// before anything is sent; other errors are DistBackendError, DistNetworkError or DistStoreError, and the first one
/// ends the group.
class BackendAtoll final : public c10d::Backend {
 public:
  struct Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds group_timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options("atoll", group_timeout) {}
  };

  /// Meets the other ranks of the group through `store`; `options->group_name` must be equal on all of them and unique
  /// among the groups that share the store. `global_rank` names this process in messages.
  BackendAtoll(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, c10::intrusive_ptr<Options> options,
               int global_rank, Place place);

  /// Closes the group when shutdown() was not called: peers that still need this rank see an error.
  ~BackendAtoll() override;
  /// Closes the group when the last strong reference is gone; a parent may still hold a weak one.
  void release_resources() override;

  const std::string getBackendName() const override { return "atoll"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts = {}) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts = {}) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts = {}) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts = {}) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts = {}) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts = {}) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts = {}) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts = {}) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts = {}) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts = {}) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts = {}) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts = {}) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts = {}) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts = {}) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& opts = {}) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts = {}) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts = {}) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  /// Messages never block in the order of issue: a batch may hold sends and receives in any order. Single messages
  /// inside a group of one island are the exception: its library runs them, and NCCL's wait for those issued before.
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  /// Between the two calls, this thread's operations are issued at once but asynchronously; endCoalescing returns one
  /// Work for all of them.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { regions_.begin(); }
  WorkPtr endCoalescing() override { return regions_.end(); }

  /// True for CPU tensors if another rank of the group runs on this host and may read them where they lie.
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  /// From now on supportsTensorAlloc() returns false, in all groups of the process.
  static void stop_tensor_alloc() noexcept;
  /// Returns an uninitialised tensor of one dimension in this process's arena (process/arena.h).
  at::Tensor allocateTensor(long size, at::TensorOptions options = {}) override;  // NOLINT: torch's type
  std::shared_ptr<c10::Allocator> getMemAllocator() override;

  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return group()->sequence(); }
  /// False if some ranks are on CPUs and some on accelerators: PyTorch would split the group on the latter only.
  bool supportsSplitting() const override;
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;
  void setTimeout(std::chrono::milliseconds timeout) override { open_->set_timeout(timeout); }
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;
#ifdef C10D_BACKEND_HAS_HOOKS  // since 2.14
  /// `output`, on the root: contiguous, holds every rank's input in the order of ranks.
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts = {}) override;
  /// Hooks are called once, on any thread, when the group fails, or at once if it has failed. They must not block.
  bool supportsAbortHooks() const { return true; }  // NOLINT: called by Backend since 2.15
  void registerAbortHook(std::int64_t id, c10d::AbortHook hook) override;
  void unregisterAbortHook(std::int64_t id) override;
#endif

  /// The group, for reports. Throws DistBackendError after shutdown() and in a forked child.
  std::shared_ptr<collectives::Group> group() const { return open_->group(); }

  /// Seconds that copies between devices and the host have taken, since the first call.
  double staging_seconds() { return staging_.clock()->seconds(); }

  /// The number of calls that have reached groups of this kind on the calling thread, however they ended. A call that
  /// fails earlier, in torch.distributed's own functions, must be reported to the other ranks with refuse() or
  /// refuse_message().
  static std::uint64_t entered_on_this_thread() noexcept;

  /// Refuses the next collective on this rank: it ends on the other ranks with an error that contains `why`.
  void refuse(const std::string& why);

  /// Refuses a message to or from `peer` in the same way.
  void refuse_message(int peer, int tag, bool sends, const std::string& why);

  /// Torch's name of the type of device that this rank computes on.
  const std::string& device_type() const noexcept { return place_.device; }

  /// Shuts down every open group of the process, on all ranks the latest first, because an island's library may wait
  /// for the others. Called when the interpreter is about to exit: afterwards no thread of Atoll touches Python.
  static void shut_down_all() noexcept;

 private:
  struct Parts {
    std::shared_ptr<Library> library;
    GroupStaging::ByDevice queues;
    OpenGroup::Parts open;  // destroyed first
  };

  // The bodies of the operations of the same names.
  WorkPtr issue_broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts);
  WorkPtr issue_allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts);
  WorkPtr issue_allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts);
  WorkPtr issue_allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts);
  WorkPtr issue_reduce(Tensors& tensors, const c10d::ReduceOptions& opts);
  WorkPtr issue_allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts);
  WorkPtr issue_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts);
  WorkPtr issue_allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts);
  WorkPtr issue_allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts);
  WorkPtr issue_gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts);
  WorkPtr issue_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts);
  WorkPtr issue_reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts);
  WorkPtr issue_reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts);
  WorkPtr issue_reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                const c10d::ReduceScatterOptions& opts);
  WorkPtr issue_alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                              std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& opts);
  WorkPtr issue_alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts);
  WorkPtr issue_barrier(const c10d::BarrierOptions& opts);
  WorkPtr issue_send(Tensors& tensors, int destination, int tag);

  void report_refused_message(int peer, int tag, bool sends, const std::string& why);
  template <typename Issue>
  WorkPtr collective(Issue&& issue);
  template <typename Issue>
  WorkPtr message(int peer, int tag, bool sends, Issue&& issue);
  static void give_up(collectives::Group& group, std::uint64_t number, const std::exception_ptr& error) noexcept;

  static collectives::Call call_for(collectives::Operation operation, const About& about, collectives::DataType dtype);
  WorkPtr issue(const About& about, std::vector<collectives::Call> calls, Operands operands, const Tensors& inputs,
                Tensors outputs);
  WorkPtr issue(const About& about, collectives::Call call, Operands operands, const Tensors& inputs, Tensors outputs);
  WorkPtr issue_on_host(collectives::Group& group, const About& about, std::vector<collectives::Call> calls,
                        Operands operands, const Tensors& inputs, Tensors outputs);
  struct Message;
  Message new_message(const About& about, const at::Tensor& tensor, bool sends, int peer);
  WorkPtr receive_from(const char* title, c10d::OpType type, Tensors& tensors, int source, int tag);
  Parts take();                     // empty if already closed, and in a forked child
  static void drain(Parts& parts);  // waits for issued operations; fails the group if they do not end
  static void close(Parts parts, bool orderly) noexcept;

  const c10::intrusive_ptr<Options> options_;
  const int global_rank_;
  const Place place_;
  const std::shared_ptr<OpenGroup> open_;
  const std::shared_ptr<IslandLibrary> island_;
  Regions regions_;
  GroupStaging staging_;
  const std::shared_ptr<FailureHooks> failure_hooks_ = std::make_shared<FailureHooks>();
  PassThrough pass_through_;
  IslandMessages island_messages_;

  std::mutex mutex_;
  std::map<std::string, c10::weak_intrusive_ptr<BackendAtoll>> splits_;
  std::byte barrier_byte_{0};
};

}  // namespace atl::pytorch
