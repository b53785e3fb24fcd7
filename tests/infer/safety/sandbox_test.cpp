// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/safety/sandbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <thread>
#include <vector>

#include "atoll/core/error.h"

namespace atl::infer::safety {
namespace {

constexpr int kGood = 42;

// The wait status of a child that enters the sandbox and then runs `action`; it exits with kGood if that returns true.
int status_of(const std::function<bool()>& action, const SandboxOptions& options = {}) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      enter_sandbox(options);
      _exit(action() ? kGood : 1);
    } catch (const Error&) {
      _exit(3);
    } catch (...) {
      _exit(2);
    }
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

bool is_good(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == kGood; }
bool is_killed(int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS; }

bool is_refused(long result) { return result == -1 && errno == EPERM; }

void expect_refused(const char* what, const std::function<long()>& call) {
  EXPECT_TRUE(is_good(status_of([&] { return is_refused(call()); }))) << what;
}

struct Descriptor {
  explicit Descriptor(int value) : fd(value) {}
  ~Descriptor() { close(fd); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd;
};

// Proves I-10.
TEST(Sandbox, OpensNothing) {
  expect_refused("open", [] { return open("/etc/passwd", O_RDONLY | O_CLOEXEC); });
  expect_refused("/proc", [] { return open("/proc/self/maps", O_RDONLY | O_CLOEXEC); });
  expect_refused("/sys", [] { return open("/sys/devices/system/cpu/online", O_RDONLY | O_CLOEXEC); });
  expect_refused("creating", [] { return open("/tmp/left-behind", O_WRONLY | O_CREAT | O_CLOEXEC, 0600); });
  expect_refused("unlink", [] { return unlink("/tmp/left-behind"); });
  expect_refused("mkdir", [] { return mkdir("/tmp/left-behind", 0700); });
  expect_refused("memfd", [] { return memfd_create("more", 0); });
  EXPECT_TRUE(is_good(status_of([] { return std::fopen("/etc/passwd", "re") == nullptr; })));
}

// Proves I-10.
TEST(Sandbox, ReachesNobody) {
  expect_refused("socket", [] { return socket(AF_INET, SOCK_STREAM, 0); });
  expect_refused("unix socket", [] { return socket(AF_UNIX, SOCK_STREAM, 0); });
  Descriptor open_socket(socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_GE(open_socket.fd, 0);
  sockaddr address{};
  address.sa_family = AF_INET;
  expect_refused("connect", [&] { return connect(open_socket.fd, &address, sizeof(address)); });
  expect_refused("bind", [&] { return bind(open_socket.fd, &address, sizeof(address)); });
  expect_refused("listen", [&] { return listen(open_socket.fd, 1); });
}

// Proves I-10.
TEST(Sandbox, StartsNoProcess) {
  EXPECT_TRUE(is_killed(status_of([] {
    execl("/bin/true", "/bin/true", static_cast<char*>(nullptr));
    return true;
  })));
  expect_refused("fork", [] {
    const pid_t child = fork();
    if (child == 0) execl("/bin/true", "/bin/true", static_cast<char*>(nullptr));
    return static_cast<long>(child);
  });
}

TEST(Sandbox, TouchesNoOtherProcess) {
  const pid_t parent = getpid();
  expect_refused("kill", [=] { return kill(parent, 0); });
  expect_refused("kill", [=] { return kill(parent, SIGTERM); });
  expect_refused("a limit of another", [=] { return prlimit(parent, RLIMIT_NOFILE, nullptr, nullptr); });
  EXPECT_TRUE(is_killed(status_of([=] { return ptrace(PTRACE_ATTACH, parent, nullptr, nullptr) == 0; })));
}

TEST(Sandbox, CannotBeLeft) {
  expect_refused("a higher limit", [] {
    const rlimit more{RLIM_INFINITY, RLIM_INFINITY};
    return setrlimit(RLIMIT_AS, &more);
  });
  expect_refused("dumpable", [] { return prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); });
  expect_refused("no signal at the parent's death", [] { return prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0); });
}

TEST(Sandbox, MemoryEndsAtTheLimit) {
  constexpr std::size_t kLimit = std::size_t{256} << 20;
  const auto can_have = [](std::size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory != MAP_FAILED;
  };
  const SandboxOptions options{.memory_bytes = kLimit};
  EXPECT_TRUE(is_good(status_of([&] { return can_have(kLimit / 2); }, options)));
  EXPECT_TRUE(
      is_good(status_of([&] { return !can_have(kLimit + (std::size_t{1} << 20)) && errno == ENOMEM; }, options)));
  EXPECT_TRUE(is_good(status_of([&] { return can_have(kLimit / 2) && !can_have(kLimit / 2 + (1U << 20)); }, options)));
}

TEST(Sandbox, DescriptorsEndAtTheLimit) {
  const auto all = [] {
    int count = 0;
    while (count < 1000 && eventfd(0, 0) >= 0) ++count;
    return count > 0 && count < 32 && errno == EMFILE;
  };
  EXPECT_TRUE(is_good(status_of(all, {.descriptors = 32})));
}

// As run-time compilers such as oneDNN do. Memory cannot be mapped as executable in the first place, as for a library.
TEST(Sandbox, MemoryCanBecomeCodeButIsNotMappedAsIt) {
  constexpr std::size_t kPage = 4096;
  EXPECT_TRUE(is_good(status_of([] {
    void* memory = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory != MAP_FAILED && mprotect(memory, kPage, PROT_READ | PROT_WRITE | PROT_EXEC) == 0;
  })));
  Descriptor file(memfd_create("library", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.fd, kPage), 0);
  expect_refused("code from a file", [&] {
    void* memory = mmap(nullptr, kPage, PROT_READ | PROT_EXEC, MAP_PRIVATE, file.fd, 0);
    return memory == MAP_FAILED ? -1L : 0L;
  });
}

TEST(Sandbox, ThreadsWork) {
  EXPECT_TRUE(is_good(status_of([] {
    std::atomic<int> sum{0};
    std::vector<std::thread> threads;
    for (int i = 1; i <= 4; ++i) threads.emplace_back([&sum, i] { sum += i; });
    for (std::thread& thread : threads) thread.join();
    return sum == 10;
  })));
}

TEST(Sandbox, ThreadsThatWereThereAreBound) {
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> phase{0};
    bool refused = false;
    std::thread before([&] {
      phase = 1;
      phase.notify_all();
      phase.wait(1);
      refused = is_refused(open("/etc/passwd", O_RDONLY | O_CLOEXEC));
    });
    phase.wait(0);
    enter_sandbox({});
    phase = 2;
    phase.notify_all();
    before.join();
    _exit(refused ? kGood : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(is_good(status));
}

TEST(Sandbox, DescriptorsThatWereThereWork) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  Descriptor ours(ends[0]);
  Descriptor theirs(ends[1]);
  Descriptor memory(memfd_create("weights", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.fd, 4096), 0);
  ASSERT_EQ(pwrite(memory.fd, "weights", 7, 0), 7);
  ASSERT_EQ(write(ours.fd, "x", 1), 1);
  const int status = status_of([&] {
    void* mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, memory.fd, 0);
    if (mapped == MAP_FAILED || std::memcmp(mapped, "weights", 7) != 0) return false;
    if (lseek(memory.fd, 0, SEEK_END) != 4096) return false;
    const Descriptor waits(epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(waits.fd, EPOLL_CTL_ADD, theirs.fd, &event) != 0 || epoll_wait(waits.fd, &event, 1, 1000) != 1) {
      return false;
    }
    char byte = 0;
    return read(theirs.fd, &byte, 1) == 1 && byte == 'x' && write(theirs.fd, "y", 1) == 1;
  });
  EXPECT_TRUE(is_good(status));
  char byte = 0;
  EXPECT_EQ(read(ours.fd, &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
}

TEST(Sandbox, ClocksAndAllocationsWork) {
  EXPECT_TRUE(is_good(status_of([] {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::byte> bytes(std::size_t{64} << 20);
    bytes[bytes.size() / 2] = std::byte{1};
    return std::chrono::steady_clock::now() >= begin && std::chrono::system_clock::now().time_since_epoch().count() > 0;
  })));
}

TEST(Sandbox, AbortEndsTheProcess) {
  const int status = status_of([]() -> bool { std::abort(); });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

TEST(Sandbox, AParentThatIsGoneIsNoticed) {
  const int status = status_of([] { return true; }, {.parent = 1});
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3);
  EXPECT_TRUE(is_good(status_of([] { return true; }, {.parent = getpid()})));
}

}  // namespace
}  // namespace atl::infer::safety
