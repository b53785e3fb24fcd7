// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/bindings/redis_module.h"

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "atoll/pytorch/python/errors.h"
#include "atoll/pytorch/python/store/redis_store.h"
#include "atoll/redis/membership.h"

namespace atl::pytorch {

namespace {

std::vector<redis::JobView> jobs(const std::string& url, std::chrono::milliseconds timeout) {
  return translated(
      [&] { return redis::list_jobs(redis::with_environment(redis::parse_url(url)), Deadline::after(timeout)); });
}

/// Bytes, because the text may not be valid UTF-8.
std::map<int, py::bytes> members(const redis::JobView& job) {
  std::map<int, py::bytes> all;
  for (const auto& [rank, json] : job.members) all.emplace(rank, py::bytes(json));
  return all;
}

}  // namespace

void bind_redis(py::module_& module) {
  py::class_<RedisStore, c10::intrusive_ptr<RedisStore>, c10d::Store>(
      module, "RedisStore", "A job's store in a Redis server, for torch.distributed.")
      .def(py::init<const std::string&, std::chrono::milliseconds>(), py::arg("url"),
           py::arg("timeout") = std::chrono::milliseconds(c10d::Store::kDefaultTimeout),
           py::call_guard<py::gil_scoped_release>())
      .def("publish", &RedisStore::publish, py::arg("rank"), py::arg("json"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("url", &RedisStore::url)
      .def_property_readonly("job", &RedisStore::job);
  py::class_<redis::JobView>(module, "RedisJob", "One job in a Redis server.")
      .def_readonly("name", &redis::JobView::name)
      .def_readonly("created", &redis::JobView::created)
      .def_readonly("world_size", &redis::JobView::world_size)
      .def_readonly("alive", &redis::JobView::alive)
      .def_property_readonly("members", &members);
  module.def("leave_redis_jobs", &redis::Membership::leave_all, py::call_guard<py::gil_scoped_release>());
  module.def("redis_jobs", &jobs, py::arg("url"), py::arg("timeout"), py::call_guard<py::gil_scoped_release>());
  module.def(
      "redis_place",
      [](const std::string& url) {
        return translated([&] {
          const auto parsed = redis::parse_url(url);
          return py::make_tuple(redis::to_string(parsed), parsed.job, parsed.rank, parsed.world_size);
        });
      },
      py::arg("url"), "The parts of a URL: the server without its password, the job, rank and world size.");
}

}  // namespace atl::pytorch
