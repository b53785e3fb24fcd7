// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "atoll/sim/library/communicator.h"
#include "atoll/sim/pytorch/operands.h"
#include "atoll/sim/pytorch/work.h"

namespace atl::sim {

/// The simulated accelerator's own process group, "simccl", as NCCL's is CUDA's. An operation waits for the work on the
/// caller's current stream, runs on a stream of the library's, and Work::wait() makes the caller's current stream wait
/// for it. Tensors are contiguous and on simulated devices of this process, those of one call on one device; they may
/// be freed at any time. Collectives must be issued in the same order on all ranks. Messages match in order, whatever
/// their tags, and those of each peer and direction run concurrently with everything else. Invalid arguments throw
/// ValueError before anything is issued; any other error is a DistBackendError, ends the group on all ranks, and is
/// thrown by every later call. A failed operation blocks its stream until abort() or for a few seconds, so that its
/// values are not used unnoticed. Thread-safe.
class ProcessGroupSimccl final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  /// For a group that meets through `store`, where keys of other groups must have another prefix. `timeout`: to meet,
  /// and of operations.
  ProcessGroupSimccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout);
  ~ProcessGroupSimccl() override;

  /// Meets the other ranks, which the first operation does otherwise. Blocks until all have come, whatever else
  /// happens; throws DistBackendError if one has not within the group's timeout.
  void eagerConnectSingleDevice(at::Device device) override;

  const std::string getBackendName() const override { return "simccl"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts = {}) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts = {}) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts = {}) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts = {}) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts = {}) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts = {}) override;
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
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;

  /// Between the two calls, this thread's operations of all groups only queue, also where an exception has kept the
  /// second from being called, as between ncclGroupStart() and ncclGroupEnd(). endCoalescing() has them begin, if no
  /// other region of the thread is open, and returns one Work for all of this group's; null if there are none, or the
  /// last one is synchronous.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return collectives_.load(); }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ms_ = timeout.count(); }
  c10d::ErrorType getError() override;

  /// Fails the group on all ranks and wakes all waiting threads. Needs no peer. Then waits until the devices have done
  /// what libraries have issued to them, of other groups too, as freeing a communicator's memory does with CUDA.
  void abort() override;

  /// Waits for issued operations, within the group's timeout, and leaves. Others fail only if they still need this
  /// rank.
  void shutdown() override;

 private:
  struct About {
    c10d::OpType type;
    const char* title;  ///< for the profiler
    std::chrono::milliseconds timeout;
    bool async;
  };
  /// An operation that a region holds back.
  struct Waiting {
    c10::intrusive_ptr<ProcessGroupSimccl> group;
    About about;
    std::vector<Operands> all;
    Tensors inputs;
    Tensors outputs;
  };
  /// The regions of a thread.
  struct Regions {
    int open = 0;
    std::vector<Waiting> waiting;
  };
  /// A sequence of operations that must run one after the other, on any streams.
  struct Flow {
    Event last;
    std::shared_ptr<Outcome> outcome;
  };
  struct Touched {
    std::vector<Region> regions;
    Event done;
  };

  template <typename Opts>
  static About about_call(c10d::OpType type, const char* title, const Opts& opts) {
    return {type, title, opts.timeout, opts.asyncOp};
  }
  static Regions& regions();
  WorkPtr issue(const About& about, std::vector<Operands> all, const Tensors& inputs, Tensors outputs);
  c10::intrusive_ptr<WorkSimccl> begin(const About& about, std::vector<Operands> all, const Tensors& inputs,
                                       Tensors outputs);
  static WorkPtr finished_on_stream(WorkSimccl& work);
  WorkSimccl::Part issue_one(Operands operands, std::chrono::milliseconds timeout);
  StreamLease& lane(c10::DeviceIndex index, const Call& call);
  void wait_for_overlapping(const Call& call, Stream& stream);
  void check_open() const;
  std::size_t me() const noexcept { return static_cast<std::size_t>(rank_); }
  std::shared_ptr<Communicator> communicator() const;
  void connect();
  WorkPtr send_or_receive(bool sends, Tensors& tensors, int peer);

  const c10::intrusive_ptr<c10d::Backend::Options> options_;
  const std::uint32_t made_in_;  // fork_depth() of the maker
  const bool reorder_;
  const bool is_serial_;  // with all other operations on the device
  const double link_bytes_per_s_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const CommunicatorOptions joining_;
  std::mutex connecting_mutex_;                                        // held while the ranks meet
  mutable std::mutex communicator_mutex_;                              // guards the next
  std::shared_ptr<Communicator> communicator_;                         // null until they have met
  const std::shared_ptr<Outcome> gate_ = std::make_shared<Outcome>();  // open: failed operations release their streams
  std::atomic<std::int64_t> timeout_ms_;
  std::atomic<std::uint64_t> collectives_{0};
  std::atomic<bool> closed_{false};

  // Guards the following. Held while an operation is issued, so that streams hold operations in the order of their
  // sequences.
  std::mutex mutex_;
  std::map<std::tuple<c10::DeviceIndex, Operation, int>, std::unique_ptr<StreamLease>> lanes_;
  std::map<std::pair<Operation, int>, Flow> flows_;
  std::vector<Touched> touched_;  // by collectives under way that may overtake each other
};

}  // namespace atl::sim
