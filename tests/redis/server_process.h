// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "atoll/core/deadline.h"
#include "atoll/core/error.h"
#include "atoll/redis/server.h"
#include "tests/transport/temporary_folder.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace atl::test {

/// A `redis-server` of the test's own, on a free port of the loopback, which keeps its keys in memory.
class ServerProcess {
 public:
  ServerProcess() {
    for (int attempts = 0; attempts < 5 && pid_ < 0; ++attempts) {
      port_ = free_port();
      start();
    }
    if (pid_ < 0) throw std::runtime_error("redis-server does not start: is Debian's redis-server installed?");
  }
  ~ServerProcess() { kill(); }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  redis::Url url(const std::string& options) const { return redis::parse_url("redis://" + address() + "/?" + options); }

  void signal(int number) const { ::kill(pid_, number); }

  void kill() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  /// Starts it on the same port; returns when it answers.
  void start() {
    std::vector<std::string> words{"redis-server",    "--port",    std::to_string(port_), "--bind", "127.0.0.1",
                                   "--save",          "",          "--appendonly",        "no",     "--dir",
                                   folder_.path("."), "--logfile", folder_.path("log")};
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    // If it held the test's output open, the reader of that output would wait forever for a test that crashed.
    posix_spawn_file_actions_t files;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    ::posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
    const int failed = ::posix_spawnp(&pid_, "redis-server", &files, nullptr, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&files);
    if (failed != 0) {
      pid_ = -1;
      return;
    }
    const auto until = Deadline::after(std::chrono::seconds(20));
    while (!answers() && !until.expired()) {
      if (::waitpid(pid_, nullptr, WNOHANG) == pid_) {  // another program has taken the port
        pid_ = -1;
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  /// Returns the server's answer to a command of the test.
  redis::Reply ask(const std::vector<std::string>& command) const {
    const auto soon = Deadline::after(std::chrono::seconds(10));
    redis::Connection connection(url(""), nullptr, soon);
    return connection.call(command, soon);
  }

 private:
  bool answers() const {
    try {
      return ask({"PING"}).text == "PONG";
    } catch (const Error&) {
      return false;
    }
  }

  static std::uint16_t free_port() {
    const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      throw std::runtime_error("no free port");
    }
    return ntohs(address.sin_port);
  }

  TemporaryFolder folder_;
  std::uint16_t port_ = 0;
  pid_t pid_ = -1;
};

}  // namespace atl::test
