// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "atoll/pytorch/python/backend/group_staging.h"
#include "atoll/pytorch/python/backend/island_library.h"
#include "atoll/pytorch/python/backend/open_group.h"
#include "atoll/pytorch/python/backend/regions.h"
#include "atoll/pytorch/staging/dtype.h"
#include "atoll/pytorch/staging/plain.h"

namespace atl::pytorch {

/// Passes operations to the island's library when all ranks are one island, or both ends of a message are in one. A
/// for_* function returns the library for an operation (null for none), then an issue function issues it there.
/// Thread-safe.
class PassThrough {
 public:
  /// All arguments must be of the same group.
  PassThrough(std::shared_ptr<OpenGroup> open, std::shared_ptr<IslandLibrary> island, Regions& regions,
              GroupStaging& staging);

  // All ranks get the same answer from these.

  /// The library for an operation on `tensors`, with reduction `how` if it has one.
  std::shared_ptr<Library> for_whole(const Tensors& tensors, const Reduction* how = nullptr) const;

  /// The same for lists with one tensor per rank, whose sizes all ranks know.
  std::shared_ptr<Library> for_list(const Tensors& tensors, const Reduction* how = nullptr) const;

  /// The library for a gather or scatter of `tensor`, as an exchange of any sizes. Gloo's are equal: Atoll does it on
  /// the CPU.
  std::shared_ptr<Library> for_rooted(const at::Tensor& tensor) const;

  /// The library for a reduction that it does not have, but that scaling makes of its sum.
  std::shared_ptr<Library> for_scaled(const at::Tensor& tensor, const Reduction& how) const;

  /// The library for a message inside an island of accelerators. On the CPU Atoll's own links are used.
  std::shared_ptr<Library> for_message(const at::Tensor& tensor, int peer) const;

  /// `call(inner, opts)` issues one operation, on tensors that `plain` has made, with options whose timeout is set.
  template <typename Opts, typename Call>
  WorkPtr issue(const std::shared_ptr<Library>& library, const PlainTensors& plain, const Opts& opts, Call&& call);

  /// `call(inner, opts, i)` issues the i-th of `count` operations, which become one Work.
  template <typename Opts, typename Call>
  WorkPtr issue_each(const std::shared_ptr<Library>& library, const PlainTensors& plain, const Opts& opts,
                     std::size_t count, Call&& call);

  /// Issues a message, which only two ranks know of, so that it takes no number in the group's order.
  template <typename Call>
  WorkPtr issue_message(const std::shared_ptr<Library>& library, const PlainTensors& plain, int peer, bool sends,
                        Call&& call);

  /// `call(inner, opts)` issues a sum, which becomes reduction `how` by scaling `inputs` before or `outputs` after it.
  template <typename Opts, typename Call>
  WorkPtr issue_scaled(const std::shared_ptr<Library>& library, const PlainTensors& plain, const Opts& opts,
                       const About& about, const Reduction& how, const Tensors& inputs, const Tensors& outputs,
                       Call&& call);

 private:
  template <typename Opts>
  Opts timed(Opts opts) const;
  void check_health() const;
  void begin(const PlainTensors& plain) const;
  void begin_message(const PlainTensors& plain, int peer, bool sends) const;
  template <typename Opts, typename Call>
  WorkPtr issue_now(const std::shared_ptr<Library>& library, const PlainTensors& plain, const Opts& opts,
                    std::size_t count, Call&& call);
  void scale(const std::shared_ptr<StagedOperation>& operation, const Reduction& how, const Tensors& inputs,
             const Tensors& outputs, const std::function<WorkPtr()>& sum) const;
  WorkPtr issue_scaled(const std::shared_ptr<Library>& library, const PlainTensors& plain, const About& about,
                       const Reduction& how, const Tensors& inputs, const Tensors& outputs,
                       const std::function<WorkPtr()>& sum);
  WorkPtr work_of(std::vector<WorkPtr> works, const PlainTensors& plain, std::chrono::milliseconds timeout);

  const std::shared_ptr<OpenGroup> open_;
  const std::shared_ptr<IslandLibrary> island_;
  Regions& regions_;
  GroupStaging& staging_;
};

template <typename Opts>
Opts PassThrough::timed(Opts opts) const {
  opts.timeout = open_->timeout(opts.timeout);
  return opts;
}

template <typename Opts, typename Call>
WorkPtr PassThrough::issue(const std::shared_ptr<Library>& library, const PlainTensors& plain, const Opts& opts,
                           Call&& call) {
  return issue_each(library, plain, opts, 1,
                    [&](c10d::Backend& inner, const Opts& stated, std::size_t) { return call(inner, stated); });
}

template <typename Opts, typename Call>
WorkPtr PassThrough::issue_each(const std::shared_ptr<Library>& library, const PlainTensors& plain, const Opts& opts,
                                std::size_t count, Call&& call) {
  begin(plain);
  return issue_now(library, plain, opts, count, std::forward<Call>(call));
}

template <typename Call>
WorkPtr PassThrough::issue_message(const std::shared_ptr<Library>& library, const PlainTensors& plain, int peer,
                                   bool sends, Call&& call) {
  struct NoOptions {  // c10d has no options for messages
    std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  };
  begin_message(plain, peer, sends);
  return issue_now(library, plain, NoOptions{}, 1,
                   [&](c10d::Backend& inner, const NoOptions&, std::size_t) { return call(inner); });
}

template <typename Opts, typename Call>
WorkPtr PassThrough::issue_now(const std::shared_ptr<Library>& library, const PlainTensors& plain, const Opts& opts,
                               std::size_t count, Call&& call) {
  const Opts stated = timed(opts);
  c10d::Backend& inner = library->in();
  const bool in_region = regions_.try_join(library, plain.device(), stated.timeout);
  const bool own_region = !in_region && count > 1 && inner.supportsCoalescing();
  bool is_open = false;
  std::vector<WorkPtr> works;
  try {
    if (own_region) inner.startCoalescing();
    is_open = own_region;
    for (std::size_t i = 0; i < count; ++i) works.push_back(call(inner, stated, i));
    is_open = false;
    if (own_region) works = {inner.endCoalescing()};
  } catch (...) {
    end_quietly([&] {
      if (is_open) inner.endCoalescing();
      regions_.flush();
    });
    island_->explain(std::current_exception());
  }
  return in_region ? regions_.placeholder(plain) : work_of(std::move(works), plain, stated.timeout);
}

template <typename Opts, typename Call>
WorkPtr PassThrough::issue_scaled(const std::shared_ptr<Library>& library, const PlainTensors& plain, const Opts& opts,
                                  const About& about, const Reduction& how, const Tensors& inputs,
                                  const Tensors& outputs, Call&& call) {
  Opts summing = timed(opts);
  summing.reduceOp = c10d::ReduceOp::SUM;
  summing.asyncOp = true;  // so that the library returns a Work, which is watched
  return issue_scaled(library, plain, about, how, inputs, outputs, [&] { return call(library->in(), summing); });
}

}  // namespace atl::pytorch
