// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/ucx/worker.h"

#include <array>
#include <deque>
#include <exception>
#include <string_view>
#include <utility>

#include "atoll/core/copy.h"
#include "atoll/core/fd.h"
#include "atoll/transport/ucx/library.h"

namespace atl::transport::ucx {

namespace {

constexpr int kClosingTurns = 1000;  // a forced close usually completes at once; this bounds the wait

}  // namespace

struct Worker::Impl {
  struct Handler {
    Impl* impl = nullptr;
    MessageKind kind = MessageKind::kProbe;
  };

  Impl(std::shared_ptr<Context> of, WorkerSink& to) : context(std::move(of)), sink(to) {}

  void note(const Error& error) {
    if (!trouble) trouble = error;
  }

  /// Runs a callback and keeps exceptions out of UCX, which is written in C.
  template <class Call>
  void guarded(const Call& call) noexcept {
    try {
      call();
    } catch (const Error& error) {
      note(error);
    } catch (const std::exception& error) {
      note(Error(ErrorKind::kInternal, error.what()));
    }
  }

  /// Reports the outcome to `operation`.
  void ended(ucs_status_t status, std::size_t bytes, Operation& operation) {
    guarded([&] {
      if (status == UCS_OK) return operation.finish(nullptr, bytes);
      const bool too_long = status == UCS_ERR_MESSAGE_TRUNCATED;
      const auto kind = too_long ? ErrorKind::kMismatch : ErrorKind::kPeerLost;
      const Error error(kind, with_status("a transfer by UCX", status));
      if (!too_long && !closing) note(error);
      operation.finish(&error, 0);
    });
  }

  /// The user data of a request, which has room for one pointer.
  struct Pending {
    Impl* impl = nullptr;
    Operation* operation = nullptr;
    Pending* next_free = nullptr;
  };

  /// Takes one from a list, so that requests allocate only when more are under way than ever before.
  Pending* pend(Operation& operation) {
    if (free == nullptr) free = &pendings.emplace_back();
    Pending* const pending = free;
    free = pending->next_free;
    *pending = {this, &operation, nullptr};
    return pending;
  }

  void unpend(Pending* pending) noexcept {
    pending->next_free = free;
    free = pending;
  }

  static void settle(void* request, ucs_status_t status, std::size_t bytes, void* user) {
    auto* const pending = static_cast<Pending*>(user);
    Impl& impl = *pending->impl;
    Operation& operation = *pending->operation;
    impl.unpend(pending);
    library().request_free(request);
    impl.ended(status, bytes, operation);
  }

  static void on_sent(void* request, ucs_status_t status, void* user) { settle(request, status, 0, user); }
  static void on_received(void* request, ucs_status_t status, std::size_t bytes, void* user) {
    settle(request, status, bytes, user);
  }
  static void on_tagged(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* user) {
    settle(request, status, status == UCS_OK ? info->length : 0, user);
  }
  static ucs_status_t on_message(void* user, const void* note, std::size_t note_bytes, void* data, std::size_t bytes,
                                 const ucp_am_recv_param_t* about) {
    const auto& handler = *static_cast<const Handler*>(user);
    Impl& impl = *handler.impl;
    const bool is_here = (about->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
    ReceivedMessage received(impl, data, bytes, is_here);
    if (!impl.closing && !impl.trouble) {
      impl.guarded([&] {
        impl.sink.on_message(handler.kind, {static_cast<const std::byte*>(note), note_bytes}, received);
      });
    }
    return received.was_taken() ? UCS_INPROGRESS : UCS_OK;
  }
  static void on_broken(void* user, ucp_ep_h, ucs_status_t status) {
    auto& impl = *static_cast<Impl*>(user);
    impl.guarded([&] { impl.note(Error(ErrorKind::kPeerLost, with_status("UCX's path broke", status))); });
  }

  /// Starts a transfer by `call`, which gets the parameters and returns one of UCX's three kinds of results.
  template <class Call>
  void start(const Place& place, Operation& operation, const Call& call) {
    Pending* const pending = pend(operation);
    ucp_request_param_t wanted{};
    wanted.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    wanted.user_data = pending;
    wanted.memory_type = memory_type(place.kind);
    if (place.registration != nullptr) {
      wanted.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
      wanted.memh = place.registration->impl().handle;
    }
    const ucs_status_ptr_t request = call(wanted);
    if (UCS_PTR_IS_PTR(request)) return;  // a callback follows
    unpend(pending);
    ended(UCS_PTR_IS_ERR(request) ? UCS_PTR_STATUS(request) : UCS_OK, place.bytes, operation);
  }

  /// A received message during its callback.
  class ReceivedMessage final : public Incoming {
   public:
    ReceivedMessage(Impl& impl, void* data, std::size_t bytes, bool is_here)
        : impl_(impl), data_(data), bytes_(bytes), is_here_(is_here) {}

    std::size_t bytes() const noexcept override { return bytes_; }
    bool was_taken() const noexcept { return was_taken_; }

    void read(const Place& to, Operation& operation) override {
      if (is_here_) {
        if (bytes_ != 0) copy_bytes(static_cast<std::byte*>(to.data), static_cast<const std::byte*>(data_), bytes_);
        return operation.finish(nullptr, bytes_);
      }
      was_taken_ = true;
      impl_.start({to.data, bytes_, to.kind, to.registration}, operation, [&](ucp_request_param_t& wanted) {
        wanted.cb.recv_am = &Impl::on_received;
        return library().am_recv_data_nbx(impl_.handle, data_, to.data, bytes_, &wanted);
      });
    }

   private:
    Impl& impl_;
    void* const data_;
    const std::size_t bytes_;
    const bool is_here_;  // all of it, rather than an announcement to fetch it
    bool was_taken_ = false;
  };

  std::shared_ptr<Context> context;
  WorkerSink& sink;
  ucp_worker_h handle = nullptr;
  ucp_ep_h endpoint = nullptr;
  int descriptor = -1;
  bool handles_errors = false;
  bool closing = false;
  std::uint32_t process = fork_depth();
  std::optional<Error> trouble;
  std::array<Handler, kMessageKinds> handlers;
  std::deque<Pending> pendings;
  Pending* free = nullptr;
};

Worker::Worker(std::shared_ptr<Context> context, WorkerSink& sink)
    : impl_(std::make_unique<Impl>(std::move(context), sink)) {
  const Library& ucx = library();
  ucp_worker_params_t wanted{};
  wanted.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  wanted.thread_mode = UCS_THREAD_MODE_SINGLE;
  if (const auto status = ucx.worker_create(impl_->context->impl().handle, &wanted, &impl_->handle); status != UCS_OK) {
    throw Error(ErrorKind::kUnavailable, with_status("UCX cannot make a worker", status));
  }
  auto status = ucx.worker_get_efd(impl_->handle, &impl_->descriptor);
  for (const auto kind : {MessageKind::kProbe, MessageKind::kFrame, MessageKind::kCredit}) {
    auto& handler = impl_->handlers[static_cast<std::size_t>(kind)];
    handler = {impl_.get(), kind};
    ucp_am_handler_param_t about{};
    about.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    about.id = static_cast<unsigned>(kind);
    about.cb = &Impl::on_message;
    about.arg = &handler;
    if (status == UCS_OK) status = ucx.worker_set_am_recv_handler(impl_->handle, &about);
  }
  if (status == UCS_OK) return;
  ucx.worker_destroy(impl_->handle);
  throw Error(ErrorKind::kUnavailable, with_status("UCX cannot wait for messages", status));
}

Worker::~Worker() {
  if (impl_->process != fork_depth()) {
    static_cast<void>(impl_.release());  // its threads and mappings belong to the parent
    return;
  }
  const Library& ucx = library();
  impl_->closing = true;
  if (impl_->endpoint != nullptr && impl_->handles_errors) {
    ucp_request_param_t wanted{};
    wanted.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    wanted.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const auto request = ucx.ep_close_nbx(impl_->endpoint, &wanted);
    if (UCS_PTR_IS_PTR(request)) {
      for (int turn = 0; turn < kClosingTurns && ucx.request_check_status(request) == UCS_INPROGRESS; ++turn) {
        ucx.worker_progress(impl_->handle);
      }
      ucx.request_free(request);
    }
  }
  ucx.worker_destroy(impl_->handle);
}

std::vector<std::byte> Worker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  if (const auto status = library().worker_get_address(impl_->handle, &address, &bytes); status != UCS_OK) {
    throw Error(ErrorKind::kUnavailable, with_status("UCX has no address", status));
  }
  const auto* const begin = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> copy(begin, begin + bytes);
  library().worker_release_address(impl_->handle, address);
  return copy;
}

int Worker::descriptor() const noexcept { return impl_->descriptor; }

void Worker::connect(std::span<const std::byte> peer_address, bool same_host) {
  ucp_ep_params_t wanted{};
  wanted.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  wanted.address = reinterpret_cast<const ucp_address_t*>(peer_address.data());
  wanted.err_mode = same_host ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
  wanted.err_handler.cb = &Impl::on_broken;
  wanted.err_handler.arg = impl_.get();
  impl_->handles_errors = !same_host;
  if (const auto status = library().ep_create(impl_->handle, &wanted, &impl_->endpoint); status != UCS_OK) {
    impl_->endpoint = nullptr;
    throw Error(ErrorKind::kUnavailable, with_status("UCX has no transport to the peer", status));
  }
}

void Worker::send(MessageKind kind, std::span<const std::byte> note, const Place& from, Operation& operation) {
  impl_->start(from, operation, [&](ucp_request_param_t& wanted) {
    wanted.cb.send = &Impl::on_sent;
    return library().am_send_nbx(impl_->endpoint, static_cast<unsigned>(kind), note.data(), note.size(), from.data,
                                 from.bytes, &wanted);
  });
}

void Worker::send_tagged(std::uint64_t tag, const Place& from, Operation& operation) {
  impl_->start(from, operation, [&](ucp_request_param_t& wanted) {
    wanted.cb.send = &Impl::on_sent;
    return library().tag_send_nbx(impl_->endpoint, from.data, from.bytes, tag, &wanted);
  });
}

void Worker::receive_tagged(std::uint64_t tag, const Place& to, Operation& operation) {
  impl_->start(to, operation, [&](ucp_request_param_t& wanted) {
    wanted.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;  // only the callback reports the number of bytes
    wanted.cb.recv = &Impl::on_tagged;
    return library().tag_recv_nbx(impl_->handle, to.data, to.bytes, tag, ~std::uint64_t{0}, &wanted);
  });
}

bool Worker::progress() { return library().worker_progress(impl_->handle) != 0; }

bool Worker::arm() {
  const auto status = library().worker_arm(impl_->handle);
  if (status != UCS_OK && status != UCS_ERR_BUSY) {
    impl_->note(Error(ErrorKind::kInternal, with_status("UCX cannot be waited for", status)));
  }
  return status == UCS_OK;
}

const std::optional<Error>& Worker::trouble() const noexcept { return impl_->trouble; }

std::string Worker::transports() const {
  if (impl_->endpoint == nullptr) return {};
  const std::string text = printed([&](std::FILE* to) { library().ep_print_info(impl_->endpoint, to); });
  std::string names;
  // "lane[0]:  5:posix/memory.0 md[4] ...", for each path that it uses
  std::string_view rest = text;
  for (auto lane = rest.find("lane["); lane != std::string_view::npos; lane = rest.find("lane[", 1)) {
    rest.remove_prefix(lane);
    const auto slash = rest.find('/');
    if (slash == std::string_view::npos) break;
    const std::string name(rest.substr(rest.rfind(':', slash) + 1, slash - rest.rfind(':', slash) - 1));
    if ((" " + names + " ").find(" " + name + " ") == std::string::npos) names += (names.empty() ? "" : " ") + name;
  }
  return names;
}

}  // namespace atl::transport::ucx
