// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

// The parts of the module atoll._C. An atl::Error that leaves a function of theirs becomes torch's exception.
namespace atl::pytorch {

void bind_blocks(pybind11::module_& module);   ///< collectives/reduce/blocks.h for CPU tensors
void bind_plan(pybind11::module_& module);     ///< planners whose requests and answers are dictionaries, as their JSON
void bind_json(pybind11::module_& module);     ///< functions of JSON texts: planners, simulation, rules of regions
void bind_profile(pybind11::module_& module);  ///< profiles of split inference
void bind_serve(pybind11::module_& module);    ///< InferServer, make_key_file
void bind_session(pybind11::module_& module);  ///< InferSession: split inference on PyTorch's operators
void bind_trial(pybind11::module_& module);    ///< messages between tensors without rings, for measurements
void bind_watch(pybind11::module_& module);    ///< ModuleWatch: detects changes of a module's dicts and tensors
void bind_redis(pybind11::module_& module);    ///< RedisStore, and what lists the jobs of a Redis server

}  // namespace atl::pytorch
