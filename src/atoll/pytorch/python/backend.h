// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "atoll/collectives/group.h"
#include "atoll/pytorch/aten/torch.h"
#include "atoll/pytorch/inner/dtype.h"
#include "atoll/pytorch/inner/library.h"
#include "atoll/pytorch/inner/operands.h"
#include "atoll/pytorch/inner/passage.h"
#include "atoll/pytorch/python/process.h"
#include "atoll/pytorch/python/store.h"
#include "atoll/pytorch/python/work.h"

namespace atl::pytorch {

/// A process group of torch.distributed over collectives::Group. Tensors on the CPU, or on an accelerator, from where they are
/// copied to the host and back; those of one call are on one device, ranks may differ. Where the vendor has a library for an
/// island, it works inside: alone, when all ranks are one island. All functions are thread-safe; collectives must be
/// issued in the same order on all ranks. With asyncOp == false a collective runs on the calling thread and its Work is complete.
/// Wrong arguments throw ValueError or TypeError before anything is sent; other errors are DistBackendError,
/// DistNetworkError or DistStoreError, and the first one ends the group.
class BackendAtoll final : public c10d::Backend {
 public:
  struct Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds group_timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options("atoll", group_timeout) {}
  };
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  /// Meets the other ranks of the group through `store`; `options->group_name` must be equal on all of them and unique among
  /// the groups that share the store. `global_rank` names this process in messages.
  BackendAtoll(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, c10::intrusive_ptr<Options> options,
               int global_rank, Place place);

  /// Closes the group when shutdown() was not called: peers that still need this rank see an error.
  ~BackendAtoll() override;

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

  /// Messages never block in the order of issue: batches in any order of sends and receives go through.
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  /// Between the two, this thread's operations are issued at once but asynchronously; endCoalescing returns one Work for all.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return group()->sequence(); }
  /// Not where some ranks are on CPUs and some on accelerators: PyTorch splits groups on the latter only, which the others
  /// would never learn.
  bool supportsSplitting() const override;
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

  /// The group, for reports. Throws DistBackendError after shutdown() and in a forked child.
  std::shared_ptr<collectives::Group> group() const;

  /// The library that this rank's island uses: its name, "" for none.
  std::string library_in_use() const;

  /// What this rank computes on, as torch names the type.
  const std::string& device_type() const noexcept { return place_.device; }

  /// Shuts down every group of the process that is still open. Called when the interpreter is about to end: afterwards no
  /// thread of Atoll touches Python.
  static void shut_down_all() noexcept;

 private:
  struct Parts {
    std::shared_ptr<Process> process;
    std::shared_ptr<Library> library;
    std::unordered_map<c10::Device, std::shared_ptr<Passage>> passages;
    std::shared_ptr<collectives::Group> group;  // goes first
  };
  struct Operation {
    c10d::OpType type;
    const char* title;  ///< for the profiler
    std::chrono::milliseconds timeout;
    bool async;
  };

  collectives::Call call_for(collectives::Operation operation, const Operation& about,
                             collectives::DataType dtype) const;
  WorkPtr issue(const Operation& about, std::vector<collectives::Call> calls, Operands operands, const Tensors& inputs,
                Tensors outputs);
  WorkPtr issue_on_host(const Operation& about, std::vector<collectives::Call> calls, Operands operands,
                        const Tensors& inputs, Tensors outputs);
  WorkPtr issue_through_passage(const Operation& about, std::vector<collectives::Call> calls, Operands operands,
                                const Tensors& inputs, Tensors outputs);
  template <typename Call>
  WorkPtr pass(const std::shared_ptr<Library>& library, const PlainTensors& plain, std::chrono::milliseconds timeout,
               Call&& call);
  static void watch_results(const c10::weak_intrusive_ptr<BackendAtoll>& weak, const std::shared_ptr<Trip>& trip,
                            std::chrono::milliseconds timeout);
  WorkPtr of_library(std::vector<WorkPtr> works, Watch::EntryPtr entry);
  Watch::EntryPtr watch_over(const std::vector<WorkPtr>& works, std::chrono::milliseconds timeout);
  std::chrono::milliseconds own_or_group(std::chrono::milliseconds timeout) const;
  void explain(const std::exception_ptr& error);
  WorkPtr with_copies(const PlainTensors& plain, const WorkPtr& work);
  const std::vector<int>& island() const;
  template <typename Opts>
  Opts with_timeout(Opts opts) const;
  template <typename Call>
  WorkPtr pass_each(const std::shared_ptr<Library>& library, const PlainTensors& plain,
                    std::chrono::milliseconds timeout, std::size_t count, Call&& call);
  std::shared_ptr<Library> whole_library(const Tensors& tensors, const Reduction* how = nullptr) const;
  std::shared_ptr<Library> list_library(const Tensors& tensors, const Reduction* how = nullptr) const;
  std::shared_ptr<Library> scaling_library(const at::Tensor& tensor, const Reduction& how) const;
  WorkPtr pass_scaled(const Operation& about, const std::shared_ptr<Library>& library, const Reduction& how,
                      const Tensors& inputs, const Tensors& outputs, const std::function<WorkPtr(c10d::Backend&)>& sum);
  std::shared_ptr<Library> message_library(const at::Tensor& tensor, int peer) const;
  void join_library(const c10::intrusive_ptr<c10d::Store>& store);
  std::shared_ptr<Library> library() const;
  std::shared_ptr<Library> library_for(const collectives::Call& call, const Operands& operands) const;
  std::shared_ptr<Passage> passage(c10::Device device);
  static collectives::Call on_host(const std::shared_ptr<collectives::Group>& group,
                                   const std::shared_ptr<Passage>& passage, const Passage::EntryPtr& entry);
  struct Message;
  Message new_message(const Operation& about, const at::Tensor& tensor, bool sends);
  WorkPtr receive_from(const char* title, c10d::OpType type, Tensors& tensors, int source, int tag);
  c10::intrusive_ptr<WorkAtoll> new_work(const Operation& about, const std::shared_ptr<collectives::Group>& group,
                                         Operands operands, const Tensors& inputs, Tensors outputs);
  c10::intrusive_ptr<WorkAtoll> new_work(const Operation& about, const std::shared_ptr<collectives::Group>& group,
                                         std::shared_ptr<Trip> trip, const Tensors& inputs, Tensors outputs);
  std::shared_ptr<Process> process() const;  // null once closed
  WorkPtr combined(std::vector<WorkPtr> works);
  bool coalescing() const;
  void note_if_coalescing(const WorkPtr& work);
  bool open_region_of(const std::shared_ptr<Library>& library, std::chrono::milliseconds timeout);
  void begin_passing();
  Parts take();  // nothing when already closed, or in a forked child
  static void close(Parts parts, bool orderly) noexcept;

  const c10::intrusive_ptr<Options> options_;
  const int global_rank_;
  const Place place_;
  const std::uint32_t made_in_;  // fork_depth() of the maker

  mutable std::mutex mutex_;
  std::shared_ptr<Process> process_;           // null once closed
  std::shared_ptr<collectives::Group> group_;  // likewise
  std::shared_ptr<Library> library_;           // null: none in use
  std::unordered_map<c10::Device, std::shared_ptr<Passage>> passages_;
  std::atomic<bool> has_whole_library_{false};  // all ranks are one island with a library
  std::mutex issue_mutex_;                      // the order of pieces in a passage is that of their calls in the group
  std::map<std::string, c10::weak_intrusive_ptr<BackendAtoll>> splits_;
  std::byte barrier_byte_{0};

  std::atomic<int> regions_open_{0};  // so that calls outside every region need no lock
  mutable std::mutex regions_mutex_;
  struct Region {
    std::vector<WorkPtr> works;
    std::shared_ptr<Library> library;     // has a region of its own open
    std::chrono::milliseconds timeout{};  // the longest of its operations'
  };
  std::map<std::thread::id, Region> regions_;
};

}  // namespace atl::pytorch
