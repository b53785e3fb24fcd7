// SPDX-License-Identifier: Apache-2.0
#include "atoll/infer/safety/sandbox.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "atoll/core/error.h"

namespace atl::infer::safety {
namespace {

[[noreturn]] void failed(const std::string& step, int error_number) {
  throw Error(ErrorKind::kUnavailable, with_errno("cannot enter the sandbox: " + step, error_number));
}

// The current size of the address space.
std::int64_t address_space() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/statm", "re"), std::fclose);
  long pages = 0;
  if (!file || std::fscanf(file.get(), "%ld", &pages) != 1) failed("/proc/self/statm has no size", errno);
  return pages * sysconf(_SC_PAGESIZE);
}

void limit(int resource, std::int64_t most, const char* name) {
  rlimit now{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &now) != 0) failed(name, errno);
  const auto wanted = static_cast<rlim_t>(most);
  const rlim_t hard = now.rlim_max < wanted ? now.rlim_max : wanted;
  const rlimit next{hard, hard};
  if (setrlimit(static_cast<__rlimit_resource_t>(resource), &next) != 0) failed(name, errno);
}

void set(int option, unsigned long value, const char* name) {
  if (prctl(option, value, 0, 0, 0) != 0) failed(name, errno);
}

// Rules for system calls; calls without a rule fail with EPERM.
class Filter {
 public:
  Filter() : context_(seccomp_init(SCMP_ACT_ERRNO(EPERM)), seccomp_release) {
    if (!context_) failed("seccomp_init", ENOMEM);
    // Applies to threads that libraries have started as well.
    check(seccomp_attr_set(context_.get(), SCMP_FLTATR_CTL_TSYNC, 1), "seccomp for all threads");
  }

  void allow(int call) { rule(SCMP_ACT_ALLOW, call, {}); }
  void allow(int call, const std::vector<scmp_arg_cmp>& arguments) { rule(SCMP_ACT_ALLOW, call, arguments); }
  void kill(int call) { rule(SCMP_ACT_KILL_PROCESS, call, {}); }
  void fail(int call, int error_number) { rule(SCMP_ACT_ERRNO(static_cast<unsigned>(error_number)), call, {}); }
  void load() { check(seccomp_load(context_.get()), "seccomp_load"); }

 private:
  void rule(std::uint32_t action, int call, const std::vector<scmp_arg_cmp>& arguments) {
    // A call that this machine's kernel lacks needs no rule.
    const int result =
        seccomp_rule_add_array(context_.get(), action, call, static_cast<unsigned>(arguments.size()), arguments.data());
    check(result, "a rule of seccomp");
  }
  static void check(int result, const char* step) {
    if (result != 0) failed(step, -result);
  }

  std::unique_ptr<void, void (*)(scmp_filter_ctx)> context_;
};

scmp_arg_cmp equals(unsigned argument, std::uint64_t value) { return {argument, SCMP_CMP_EQ, value, 0}; }
scmp_arg_cmp masked(unsigned argument, std::uint64_t mask, std::uint64_t value) {
  return {argument, SCMP_CMP_MASKED_EQ, mask, value};
}

constexpr std::array kAllowed{
    // Reading, writing and waiting on descriptors.
    SCMP_SYS(read), SCMP_SYS(readv), SCMP_SYS(pread64), SCMP_SYS(write), SCMP_SYS(writev), SCMP_SYS(pwrite64),
    SCMP_SYS(recvmsg), SCMP_SYS(recvfrom), SCMP_SYS(sendmsg), SCMP_SYS(sendto), SCMP_SYS(shutdown), SCMP_SYS(lseek),
    SCMP_SYS(close), SCMP_SYS(fstat), SCMP_SYS(poll), SCMP_SYS(ppoll), SCMP_SYS(epoll_create1), SCMP_SYS(epoll_ctl),
    SCMP_SYS(epoll_wait), SCMP_SYS(epoll_pwait), SCMP_SYS(epoll_pwait2), SCMP_SYS(eventfd2), SCMP_SYS(timerfd_create),
    SCMP_SYS(timerfd_settime),
    // Memory.
    SCMP_SYS(brk), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise), SCMP_SYS(membarrier),
    // Threads.
    SCMP_SYS(futex), SCMP_SYS(futex_waitv), SCMP_SYS(set_robust_list), SCMP_SYS(get_robust_list), SCMP_SYS(rseq),
    SCMP_SYS(set_tid_address), SCMP_SYS(sched_yield), SCMP_SYS(sched_getaffinity), SCMP_SYS(gettid), SCMP_SYS(exit),
    SCMP_SYS(exit_group), SCMP_SYS(getcpu),
    // Signals to itself, and their handlers.
    SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(sigaltstack),
    SCMP_SYS(restart_syscall),
    // Time, random bytes and its own ids.
    SCMP_SYS(clock_gettime), SCMP_SYS(clock_getres), SCMP_SYS(clock_nanosleep), SCMP_SYS(nanosleep),
    SCMP_SYS(gettimeofday), SCMP_SYS(time), SCMP_SYS(getrandom), SCMP_SYS(getpid), SCMP_SYS(getppid), SCMP_SYS(getuid),
    SCMP_SYS(geteuid), SCMP_SYS(getgid), SCMP_SYS(getegid), SCMP_SYS(getrusage), SCMP_SYS(sysinfo), SCMP_SYS(uname)};

// Computing never does these by mistake.
constexpr std::array kKilled{
    // Starting programs, and reaching into other processes.
    SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(ptrace), SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev),
    SCMP_SYS(pidfd_getfd),
    // Reaching into the kernel.
    SCMP_SYS(bpf), SCMP_SYS(perf_event_open), SCMP_SYS(userfaultfd), SCMP_SYS(io_uring_setup), SCMP_SYS(init_module),
    SCMP_SYS(finit_module), SCMP_SYS(delete_module), SCMP_SYS(kexec_load), SCMP_SYS(kexec_file_load), SCMP_SYS(add_key),
    SCMP_SYS(keyctl), SCMP_SYS(request_key), SCMP_SYS(reboot), SCMP_SYS(swapon),
    // Other views of the file system.
    SCMP_SYS(mount), SCMP_SYS(umount2), SCMP_SYS(pivot_root), SCMP_SYS(chroot), SCMP_SYS(setns), SCMP_SYS(unshare),
    SCMP_SYS(open_by_handle_at)};

void allow_memory(Filter& filter) {
  filter.allow(SCMP_SYS(mmap), {masked(2, PROT_EXEC, 0)});
  // oneDNN writes machine code for each shape into memory that is writable and executable at the same time.
  filter.allow(SCMP_SYS(mprotect));
}

void allow_threads(Filter& filter) {
  filter.allow(SCMP_SYS(clone), {masked(0, CLONE_THREAD, CLONE_THREAD)});
  // Its flags are in memory, which a filter cannot read; the C library then falls back to clone.
  filter.fail(SCMP_SYS(clone3), ENOSYS);
  filter.allow(SCMP_SYS(tgkill), {equals(0, static_cast<std::uint64_t>(getpid()))});
  constexpr std::uint64_t kNameMemory = 0x53564d41;  // PR_SET_VMA
  for (const std::uint64_t option : {std::uint64_t{PR_SET_NAME}, std::uint64_t{PR_GET_NAME}, kNameMemory}) {
    filter.allow(SCMP_SYS(prctl), {equals(0, option)});
  }
  // Reading its own limits: the C library looks up the size of stacks.
  filter.allow(SCMP_SYS(prlimit64), {equals(0, 0), equals(2, 0)});
  filter.allow(SCMP_SYS(getrlimit));
#ifdef __x86_64__
  // Requests the processor's matrix units (ARCH_GET_XCOMP_SUPP, ARCH_GET_XCOMP_PERM, ARCH_REQ_XCOMP_PERM).
  for (const std::uint64_t option : {0x1021, 0x1022, 0x1023}) filter.allow(SCMP_SYS(arch_prctl), {equals(0, option)});
#endif
}

void allow_descriptors(Filter& filter) {
  for (const int command : {F_GETFD, F_SETFD, F_GETFL, F_SETFL}) {
    filter.allow(SCMP_SYS(fcntl), {equals(1, static_cast<std::uint64_t>(command))});
  }
}

}  // namespace

void enter_sandbox(const SandboxOptions& options) {
  set(PR_SET_PDEATHSIG, SIGKILL, "a signal at the parent's death");
  if (options.parent != 0 && getppid() != options.parent) failed("the parent is gone", ESRCH);
  set(PR_SET_DUMPABLE, 0, "no dumps");
  limit(RLIMIT_CORE, 0, "a limit of core dumps");
  limit(RLIMIT_NOFILE, options.descriptors, "a limit of descriptors");
  if (options.memory_bytes > 0) limit(RLIMIT_AS, address_space() + options.memory_bytes, "a limit of memory");
  set(PR_SET_NO_NEW_PRIVS, 1, "no new privileges");
  Filter filter;
  for (const int call : kAllowed) filter.allow(call);
  for (const int call : kKilled) filter.kill(call);
  allow_memory(filter);
  allow_threads(filter);
  allow_descriptors(filter);
  if (options.device) filter.allow(SCMP_SYS(ioctl));
  filter.load();
}

}  // namespace atl::infer::safety
