// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "atoll/pytorch/python/backend/island_library.h"
#include "atoll/pytorch/python/backend/open_group.h"
#include "atoll/pytorch/python/backend/passages.h"
#include "atoll/pytorch/python/backend/regions.h"
#include "atoll/pytorch/staging/dtype.h"
#include "atoll/pytorch/staging/plain.h"

namespace atl::pytorch {

/// Operations that the island's library does alone: all ranks are one island, or both ends of a message are in one. First is
/// asked for the library that takes an operation (null: none does), then the operation is issued there. Thread-safe.
class PassThrough {
 public:
  /// `regions` and `passages` of the same group.
  PassThrough(std::shared_ptr<OpenGroup> open, std::shared_ptr<IslandLibrary> island, Regions& regions,
              Passages& passages);

  // For which all ranks get the same answer.

  /// For an operation on `tensors`, with reduction `how` if it has one.
  std::shared_ptr<Library> for_whole(const Tensors& tensors, const Reduction* how = nullptr) const;

  /// The same for lists with one tensor per rank, whose sizes all ranks know.
  std::shared_ptr<Library> for_list(const Tensors& tensors, const Reduction* how = nullptr) const;

  /// For a reduction that the library does not know, but that can be made of its sums by scaling.
  std::shared_ptr<Library> for_scaled(const at::Tensor& tensor, const Reduction& how) const;

  /// For a message inside an island of accelerators. On the CPU Atoll's own links serve.
  std::shared_ptr<Library> for_message(const at::Tensor& tensor, int peer) const;

  /// `call(inner, opts)` issues one operation, on tensors that `plain` has made, with options whose timeout is stated.
  template <typename Opts, typename Call>
  WorkPtr issue(const std::shared_ptr<Library>& library, const PlainTensors& plain, const Opts& opts, Call&& call);

  /// `call(inner, opts, i)` issues the i-th of `count` operations that make one.
  template <typename Opts, typename Call>
  WorkPtr issue_each(const std::shared_ptr<Library>& library, const PlainTensors& plain, const Opts& opts,
                     std::size_t count, Call&& call);

  /// The same for a message, which only its two ends know of: it takes no number in the group's order.
  template <typename Call>
  WorkPtr issue_message(const std::shared_ptr<Library>& library, const PlainTensors& plain, int peer, bool sends,
                        Call&& call);

  /// `call(inner, opts)` issues a sum, which the device makes `how` of: it scales `inputs` before or `outputs` behind it.
  template <typename Opts, typename Call>
  WorkPtr issue_scaled(const std::shared_ptr<Library>& library, const PlainTensors& plain, const Opts& opts,
                       const About& about, const Reduction& how, const Tensors& inputs, const Tensors& outputs,
                       Call&& call);

 private:
  template <typename Opts>
  Opts timed(Opts opts) const;
  void check_health() const;
  void begin() const;
  void begin_message(int peer, bool sends) const;
  template <typename Opts, typename Call>
  WorkPtr issue_now(const std::shared_ptr<Library>& library, const PlainTensors& plain, const Opts& opts,
                    std::size_t count, Call&& call);
  void scale(const std::shared_ptr<Trip>& trip, const Reduction& how, const Tensors& inputs, const Tensors& outputs,
             const std::function<WorkPtr()>& sum) const;
  WorkPtr issue_scaled(const std::shared_ptr<Library>& library, const PlainTensors& plain, const About& about,
                       const Reduction& how, const Tensors& inputs, const Tensors& outputs,
                       const std::function<WorkPtr()>& sum);
  WorkPtr work_of(std::vector<WorkPtr> works, const PlainTensors& plain, std::chrono::milliseconds timeout);

  const std::shared_ptr<OpenGroup> open_;
  const std::shared_ptr<IslandLibrary> island_;
  Regions& regions_;
  Passages& passages_;
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
  begin();
  return issue_now(library, plain, opts, count, std::forward<Call>(call));
}

template <typename Call>
WorkPtr PassThrough::issue_message(const std::shared_ptr<Library>& library, const PlainTensors& plain, int peer,
                                   bool sends, Call&& call) {
  struct NoOptions {  // c10d gives messages none
    std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  };
  begin_message(peer, sends);
  return issue_now(library, plain, NoOptions{}, 1,
                   [&](c10d::Backend& inner, const NoOptions&, std::size_t) { return call(inner); });
}

template <typename Opts, typename Call>
WorkPtr PassThrough::issue_now(const std::shared_ptr<Library>& library, const PlainTensors& plain, const Opts& opts,
                               std::size_t count, Call&& call) {
  const Opts stated = timed(opts);
  c10d::Backend& inner = library->in();
  const bool in_region = regions_.let_in(library, stated.timeout);
  const bool own_region = !in_region && count > 1 && inner.supportsCoalescing();
  std::vector<WorkPtr> works;
  try {
    if (own_region) inner.startCoalescing();
    for (std::size_t i = 0; i < count; ++i) works.push_back(call(inner, stated, i));
    if (own_region) works = {inner.endCoalescing()};
  } catch (...) {
    island_->explain(std::current_exception());
  }
  return in_region ? regions_.stand_in(plain) : work_of(std::move(works), plain, stated.timeout);
}

template <typename Opts, typename Call>
WorkPtr PassThrough::issue_scaled(const std::shared_ptr<Library>& library, const PlainTensors& plain, const Opts& opts,
                                  const About& about, const Reduction& how, const Tensors& inputs,
                                  const Tensors& outputs, Call&& call) {
  Opts summing = timed(opts);
  summing.reduceOp = c10d::ReduceOp::SUM;
  return issue_scaled(library, plain, about, how, inputs, outputs, [&] { return call(library->in(), summing); });
}

}  // namespace atl::pytorch
