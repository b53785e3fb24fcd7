// SPDX-License-Identifier: Apache-2.0
// Replaces library.cpp, context.cpp and worker.cpp in builds without UCX's headers.
#include <utility>

#include "atoll/core/error.h"
#include "atoll/transport/ucx/context.h"
#include "atoll/transport/ucx/worker.h"

namespace atl::transport::ucx {

namespace {

[[noreturn]] void absent() {
  throw Error(ErrorKind::kUnavailable,
              "this build of Atoll has no UCX: install Debian's libucx-dev (its headers) and build Atoll again");
}

}  // namespace

struct Context::Impl {
  std::string version;
};
struct Registration::Impl {};
struct Worker::Impl {
  std::optional<Error> trouble;
};

std::shared_ptr<Context> Context::open() { absent(); }
Context::Context(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Context::~Context() = default;
bool Context::has_rdma() const noexcept { return false; }
bool Context::knows(MemoryKind) const noexcept { return false; }
const std::string& Context::version() const noexcept { return impl_->version; }

Registration::Registration(std::shared_ptr<Context>, void*, std::size_t, MemoryKind) { absent(); }
Registration::~Registration() = default;

Worker::Worker(std::shared_ptr<Context>, WorkerSink&) { absent(); }
Worker::~Worker() = default;
std::vector<std::byte> Worker::address() const { absent(); }
int Worker::descriptor() const noexcept { return -1; }
void Worker::connect(std::span<const std::byte>, bool) { absent(); }
void Worker::send(MessageKind, std::span<const std::byte>, const Place&, Operation&) { absent(); }
void Worker::send_tagged(std::uint64_t, const Place&, Operation&) { absent(); }
void Worker::receive_tagged(std::uint64_t, const Place&, Operation&) { absent(); }
bool Worker::progress() { return false; }
bool Worker::arm() { return true; }
const std::optional<Error>& Worker::trouble() const noexcept { return impl_->trouble; }
std::string Worker::transports() const { return {}; }

}  // namespace atl::transport::ucx
