// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/serve/worker_process.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "atoll/core/deadline.h"
#include "atoll/infer/link/worker_descriptors.h"

extern char** environ;

namespace atl::infer {
namespace {

constexpr std::size_t kWorkerReadBytes = std::size_t{1} << 18;
constexpr int kReadsAtOnce = 8;                           // then other descriptors are served
constexpr std::chrono::milliseconds kMaxWaitForEnd{250};  // of a process that was killed

// The variables that programs and device libraries read. A worker runs a stranger's model, so it must not see others,
// such as passwords.
constexpr std::array<std::string_view, 42> kInherited{"PATH=",         "HOME=",
                                                      "USER=",         "LOGNAME=",
                                                      "LANG=",         "LANGUAGE=",
                                                      "TZ=",           "TMPDIR=",
                                                      "LC_",           "LD_",
                                                      "OMP_",          "GOMP_",
                                                      "KMP_",          "MKL_",
                                                      "DNNL_",         "ONEDNN_",
                                                      "OPENBLAS_",     "MALLOC_",
                                                      "GLIBC_",        "ATEN_",
                                                      "TORCH_",        "PYTORCH_",
                                                      "CUDA_",         "CUBLAS_",
                                                      "CUDNN_",        "NVIDIA_",
                                                      "HIP_",          "HSA_",
                                                      "ROCR_",         "ROCM_",
                                                      "MIOPEN_",       "GPU_",
                                                      "ASCEND_",       "ZE_",
                                                      "SYCL_",         "ONEAPI_",
                                                      "ATOLL_SIM_",    "ATOLL_LOG_LEVEL=",
                                                      "ASAN_OPTIONS=", "LSAN_OPTIONS=",
                                                      "TSAN_OPTIONS=", "UBSAN_OPTIONS="};

std::vector<char*> inherited_environment() {
  std::vector<char*> kept;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    const std::string_view text(*each);
    const auto begins = [text](std::string_view name) { return text.starts_with(name); };
    if (std::any_of(kInherited.begin(), kInherited.end(), begins)) kept.push_back(*each);
  }
  kept.push_back(nullptr);
  return kept;
}

class SpawnActions {
 public:
  SpawnActions() { posix_spawn_file_actions_init(&actions_); }
  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions_); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  void inherit(int from, int as) { posix_spawn_file_actions_adddup2(&actions_, from, as); }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
};

// Unblocks signals in the process, so that it can be terminated: the starting thread has all signals blocked.
class SpawnAttributes {
 public:
  SpawnAttributes() {
    sigset_t none;
    ::sigemptyset(&none);
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK);
  }
  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes_); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_{};
};

pid_t spawn(const WorkerCommand& command, const std::array<int, kWorkerDescriptors>& descriptors) {
  SpawnActions actions;
  const SpawnAttributes attributes;
  std::vector<Fd> high;  // dup2 onto the same number would leave close-on-exec set, so all come from above
  for (const int descriptor : descriptors) {
    const Fd& copy = high.emplace_back(::fcntl(descriptor, F_DUPFD_CLOEXEC, 10));
    if (!copy) throw Error(ErrorKind::kUnavailable, with_errno("cannot duplicate a worker's descriptors", errno));
    actions.inherit(copy.get(), kFirstWorkerDescriptor + static_cast<int>(high.size()) - 1);
  }
  std::vector<std::string> words{command.program, command.device, std::to_string(command.threads),
                                 std::to_string(command.memory_bytes), std::to_string(command.profile_seconds)};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<char*> environment = inherited_environment();
  pid_t pid = -1;
  const int failed = ::posix_spawn(&pid, command.program.c_str(), actions.get(), attributes.get(), arguments.data(),
                                   environment.data());
  if (failed != 0) throw Error(ErrorKind::kUnavailable, with_errno(command.program + " cannot be started", failed));
  return pid;
}

// Returns whether the process has ended, or ends within kMaxWaitForEnd. A device's driver may delay its end much
// longer.
bool ends(pid_t pid, siginfo_t& info, int options) {
  constexpr std::chrono::milliseconds kLook{1};
  const Clock::time_point until = Clock::now() + kMaxWaitForEnd;
  for (;;) {
    info = {};
    const bool is_told = ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | options) == 0;
    if (is_told ? info.si_pid != 0 : errno != EINTR) return true;
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(kLook);
  }
}

// Reaps the process, however long its end takes.
void await_end(pid_t pid) {
  try {
    std::thread([pid] {
      pthread_setname_np(pthread_self(), "atoll-reaper");
      while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }).detach();
  } catch (const std::system_error&) {  // it stays a zombie until this process ends
  }
}

std::string ending(int status) {
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    return "was killed by signal " + std::to_string(number) + " (" + ::strsignal(number) + ")";
  }
  return "exited with status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

WorkerProcess::WorkerProcess(Loop& loop, Owner& owner, const WorkerCommand& command, const Fd& weights)
    : loop_(loop),
      owner_(owner),
      payloads_in_(std::make_shared<PayloadWriter>()),
      payloads_out_(std::make_shared<PayloadReader>(payloads_made_.memory())),
      buffer_(kWorkerReadBytes) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Error(ErrorKind::kUnavailable, with_errno("cannot create a socket pair for a worker", errno));
  }
  socket_ = Fd(ends[0]);
  const Fd theirs(ends[1]);
  ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  const std::array<int, kWorkerDescriptors> given{theirs.get(), weights.get(), payloads_in_->memory().get(),
                                                  payloads_made_.memory().get()};
  pid_ = spawn(command, given);
  loop_.add_fd_on_loop(socket_.get(), EPOLLIN, [this](std::uint32_t events) {
    if ((events & EPOLLOUT) != 0) flush();
    if (!is_stopped_ && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read();
  });
}

WorkerProcess::~WorkerProcess() {
  stop();
  ::kill(pid_, SIGKILL);
  siginfo_t info{};
  if (!ends(pid_, info, 0)) await_end(pid_);
}

void WorkerProcess::stop() {
  if (!std::exchange(is_stopped_, true)) loop_.remove_fd_on_loop(socket_.get());
}

void WorkerProcess::send(const wire::Message& message) { forward(*wire::make_frame(message)); }

void WorkerProcess::forward(std::span<const std::byte> frame) {
  if (is_stopped_) return;
  if (queue_.empty()) {
    const ssize_t count = ::send(socket_.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
    if (count > 0) frame = frame.subspan(static_cast<std::size_t>(count));
  }
  if (frame.empty()) return;
  queued_bytes_ += frame.size();
  queue_.emplace_back(frame.begin(), frame.end());
  watch(true);
}

void WorkerProcess::flush() {
  while (!queue_.empty()) {
    const std::vector<std::byte>& front = queue_.front();
    const ssize_t count = ::send(socket_.get(), front.data() + front_sent_, front.size() - front_sent_, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count < 0) return;  // read() will see the end
    front_sent_ += static_cast<std::size_t>(count);
    queued_bytes_ -= static_cast<std::size_t>(count);
    taken_bytes_ += static_cast<std::size_t>(count);
    if (front_sent_ == front.size()) {
      queue_.pop_front();
      front_sent_ = 0;
    }
  }
  watch(false);
  owner_.on_drained();
}

void WorkerProcess::watch(bool writable) {
  if (std::exchange(is_watching_writable_, writable) == writable) return;
  loop_.modify_fd_on_loop(socket_.get(), writable ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void WorkerProcess::read() {
  try {
    for (int i = 0; i < kReadsAtOnce && !is_stopped_; ++i) {
      const ssize_t count = ::recv(socket_.get(), buffer_.data(), buffer_.size(), 0);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (count <= 0) return on_exit();
      parser_.push({buffer_.data(), static_cast<std::size_t>(count)}, [&](const wire::ReceivedFrame& frame) {
        if (!is_stopped_) owner_.on_frame(frame);
      });
    }
  } catch (const Error& error) {
    owner_.on_lost(error);
  } catch (const std::exception& error) {
    owner_.on_lost(Error(ErrorKind::kInternal, error.what()));
  }
}

void WorkerProcess::on_exit() {
  ::kill(pid_, SIGKILL);  // it may only have closed its end of the socket
  siginfo_t info{};
  if (!ends(pid_, info, WNOWAIT)) {
    const char* text = "the worker process for this model does not exit";
    return owner_.on_lost(Error(ErrorKind::kUnavailable, text));
  }
  const int status = info.si_code == CLD_EXITED ? info.si_status << 8 : info.si_status;
  owner_.on_lost(Error(ErrorKind::kUnavailable, "the worker process for this model " + ending(status)));
}

}  // namespace atl::infer
