// SPDX-License-Identifier: Apache-2.0
#include "atoll/pytorch/python/store/store_calls.h"

#include <pthread.h>
#include <signal.h>

#include <future>
#include <system_error>
#include <thread>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "atoll/transport/stream/host_port.h"

namespace atl::pytorch {
namespace {

const c10d::TCPStore* as_tcp(const c10::intrusive_ptr<c10d::Store>& store) {
  return dynamic_cast<const c10d::TCPStore*>(store.get());
}

}  // namespace

bool ends_in_time(const c10::intrusive_ptr<c10d::Store>& store, Deadline deadline, std::function<void()> body) {
  if (!as_tcp(store)) {
    body();
    return true;
  }
  std::promise<void> end;
  const auto ended = end.get_future();
  auto run = [body = std::move(body), end = std::move(end)]() mutable {
    pthread_setname_np(pthread_self(), "atoll-store");
    body();
    body = nullptr;  // releases the store before the caller continues
    end.set_value();
  };
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are handled by the program's own threads
  try {
    std::thread(std::move(run)).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error(ErrorKind::kUnavailable,
                std::string("cannot start a thread for a call to the job's store: ") + error.what());
  }
  return ended.wait_for(deadline.remaining(kMaxStoreWait)) == std::future_status::ready;
}

std::string whereabouts(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto* const tcp = as_tcp(store);
  return tcp ? "at " + to_string(transport::HostPort{tcp->getHost(), tcp->getPort()}) + " " : "";
}

std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace atl::pytorch
