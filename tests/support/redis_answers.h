// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/core/fd.h"
#include "atoll/redis/protocol.h"
#include "atoll/redis/url.h"

namespace atl::test {

/// A fake Redis server on a free port of the loopback interface, which accepts all clients, holds every script, and
/// answers commands as it is told.
class RedisAnswers {
 public:
  /// Returns the bytes of a reply to a command; called on a thread of this object.
  using Answer = std::function<std::string(const redis::Reply& command)>;

  RedisAnswers() {
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof here;
    auto* const address = reinterpret_cast<sockaddr*>(&here);
    listener_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    std::array<int, 2> ends{};
    if (::bind(listener_.get(), address, size) != 0 || ::listen(listener_.get(), 64) != 0 ||
        ::getsockname(listener_.get(), address, &size) != 0 || ::pipe(ends.data()) != 0) {
      throw Error(ErrorKind::kUnavailable, "no port of the loopback");
    }
    ended_ = Fd(ends[0]);
    end_ = Fd(ends[1]);
    port_ = ntohs(here.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~RedisAnswers() {
    end_.reset();
    thread_.join();
  }
  RedisAnswers(const RedisAnswers&) = delete;
  RedisAnswers& operator=(const RedisAnswers&) = delete;

  redis::Url url(const std::string& options) const {
    return redis::parse_url("redis://127.0.0.1:" + std::to_string(port_) + "/?" + options);
  }

  void set(Answer answer) {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
  }

 private:
  struct Client {
    Fd fd;
    redis::ReplyReader commands;
  };

  void serve() {
    for (;;) {
      std::vector<pollfd> all{{ended_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const auto& client : clients_) all.push_back({client.fd.get(), POLLIN, 0});
      ::poll(all.data(), all.size(), -1);
      if (all[0].revents != 0) return;
      auto client = clients_.begin();
      for (std::size_t i = 2; i < all.size(); ++i) {
        const auto current = client++;
        if (all[i].revents != 0 && !talk(*current)) clients_.erase(current);
      }
      if (all[1].revents != 0) accept();
    }
  }

  void accept() {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd.get() < 0) return;
    const linger at_once{1, 0};  // leaves no port in TIME_WAIT
    ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    clients_.emplace_back().fd = std::move(fd);
  }

  bool talk(Client& client) {
    std::array<std::byte, 16384> buffer;
    const auto got = ::recv(client.fd.get(), buffer.data(), buffer.size(), 0);
    if (got <= 0) return false;
    client.commands.feed(std::span(buffer).first(static_cast<std::size_t>(got)));
    while (const auto command = client.commands.next()) {
      const std::string text = answer(*command);
      if (::send(client.fd.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return false;
    }
    return true;
  }

  std::string answer(const redis::Reply& command) {
    const std::string& name = command.elements.at(0).text;
    if (name == "SELECT") return "+OK\r\n";
    if (name == "SCRIPT") return "$4\r\n1234\r\n";
    const std::lock_guard lock(mutex_);
    return answer_ ? answer_(command) : "-ATOLLGONE\r\n";
  }

  std::uint16_t port_ = 0;
  Fd listener_, ended_, end_;
  std::list<Client> clients_;
  std::mutex mutex_;
  Answer answer_;
  std::thread thread_;
};

}  // namespace atl::test
