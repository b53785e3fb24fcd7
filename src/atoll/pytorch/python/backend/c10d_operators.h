// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <functional>

#include "atoll/pytorch/aten/torch.h"

// PyTorch's communication operators, for kernels that replace PyTorch's for some kinds of tensors.
namespace atl::pytorch {

/// All communicating operators of the library c10d.
inline constexpr std::array kOperators{"broadcast_",
                                       "allreduce_",
                                       "allreduce_coalesced_",
                                       "reduce_",
                                       "allgather_",
                                       "_allgather_base_",
                                       "allgather_coalesced_",
                                       "allgather_into_tensor_coalesced_",
                                       "gather_",
                                       "gather_into_tensor_",
                                       "scatter_",
                                       "reduce_scatter_",
                                       "_reduce_scatter_base_",
                                       "reduce_scatter_tensor_coalesced_",
                                       "alltoall_",
                                       "alltoall_base_",
                                       "send",
                                       "recv_",
                                       "recv_any_source_"};

/// The operators of the library _c10d_functional that work on the given tensors and not on copies of them.
inline constexpr std::array kFunctionalOperators{"all_reduce_",
                                                 "all_reduce_coalesced_",
                                                 "broadcast_",
                                                 "all_gather_into_tensor_out",
                                                 "reduce_scatter_tensor_out",
                                                 "isend",
                                                 "irecv",
                                                 "batch_p2p_ops"};

/// The operators of the library _c10d_functional whose results are new tensors.
inline constexpr std::array kFunctionalCopies{"all_reduce",
                                              "all_reduce_coalesced",
                                              "broadcast",
                                              "all_gather_into_tensor",
                                              "all_gather_into_tensor_coalesced",
                                              "reduce_scatter_tensor",
                                              "reduce_scatter_tensor_coalesced",
                                              "all_to_all_single"};

/// Returns Atoll's backend for the tensors on the stack, of the group that the operator is called for, even inside a
/// debugging wrapper; null if the backend is not Atoll's. `otherwise`: the device whose backend is used for tensors on
/// devices without one, such as meta.
c10::intrusive_ptr<c10d::Backend> atoll_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                           std::optional<c10::DeviceType> otherwise = {});

/// Calls `body`. If it fails before it reaches `backend` (null if that is not Atoll's), the other ranks are told, or
/// the other end of a message.
void report_failures(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                     const c10::intrusive_ptr<c10d::Backend>& backend, const std::function<void()>& body);

}  // namespace atl::pytorch
