// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "atoll/core/fd.h"
#include "atoll/core/loop.h"
#include "atoll/transport/address.h"
#include "atoll/transport/stream/host_port.h"
#include "atoll/transport/stream/secure_stream.h"
#include "atoll/transport/stream/tls_session.h"
#include "tests/support/peers.h"
#include "tests/support/values.h"

// Streams for tests: both ends in this process, each on the loop that a test gives it.
namespace atl::test {

using ByteVector = std::vector<std::byte>;
using transport::SecureStream;
using transport::TlsRole;
using SharedCredentials = std::shared_ptr<const transport::Credentials>;

inline SharedCredentials key_of(int number) {
  return transport::Credentials::of_key(ByteVector(32, static_cast<std::byte>(number)));
}

/// Two ends of a TCP connection.
struct TcpPair {
  Fd client;
  Fd server;
};
inline TcpPair make_tcp_pair() {
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto any_port = transport::parse_ip("127.0.0.1", 0);
  if (!listener || ::bind(listener.get(), any_port->get(), any_port->length) != 0 || ::listen(listener.get(), 1) != 0) {
    throw std::runtime_error("no listener for a test");
  }
  TcpPair pair;
  pair.client = transport::connect_tcp("127.0.0.1", transport::local_address(listener.get()).port(), kPatience);
  pair.server = Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  return pair;
}

/// Returns when the loop has looked at its descriptors at least once since the call, and has run what it posted itself.
inline void settle(Loop& loop) {
  for (int i = 0; i < 4; ++i) loop.run_and_wait([] {});
}

/// A stream and what it told its owner. Set hooks before begin(); they run on the loop after the event was noted.
class End : public SecureStream::Owner {
 public:
  using Hook = std::function<void(End& end)>;
  struct Closed {
    std::optional<Error> error;
  };

  End(Loop& loop, TlsRole role, SharedCredentials credentials, SecureStream::Options options = {})
      : loop_(loop), role_(role), credentials_(std::move(credentials)), options_(std::move(options)) {
    if (options_.name.empty()) options_.name = role == TlsRole::kClient ? "the-server:1" : "the-client:1";
  }
  ~End() override { destroy(); }

  Hook when_open;
  Hook when_bytes;
  Hook when_drained;
  Hook when_closed;

  void begin(Fd socket) {
    loop_.run_and_wait([&] {
      stream_ = std::make_unique<SecureStream>(loop_, *this, std::move(socket), role_, credentials_, options_);
    });
  }

  /// On any thread; in hooks too. Does nothing where the stream is gone.
  void with(const std::function<void(SecureStream& stream)>& action) {
    loop_.run_and_wait([&] {
      if (stream_) action(*stream_);
    });
  }
  void destroy() {
    loop_.run_and_wait([&] { stream_.reset(); });
  }
  /// Returns what keeps the bytes.
  std::shared_ptr<const ByteVector> send(ByteVector bytes) {
    auto owner = std::make_shared<const ByteVector>(std::move(bytes));
    with([&](SecureStream& stream) { stream.send_on_loop({*owner, owner}); });
    return owner;
  }
  void close(std::chrono::milliseconds linger = kPatience) {
    with([&](SecureStream& stream) { stream.close_on_loop(linger); });
  }
  std::size_t queued() {
    std::size_t bytes = 0;
    with([&](SecureStream& stream) { bytes = stream.queued_bytes(); });
    return bytes;
  }

  void wait_open() {
    wait("on_open", [&] { return opens_ != 0; });
  }
  void wait_drained(int times = 1) {
    wait("on_drained", [&] { return drains_ >= times; });
  }
  ByteVector wait_received(std::size_t count) {
    wait("bytes", [&] { return received_.size() >= count; });
    return received();
  }
  std::optional<Error> wait_closed() {
    wait("on_closed", [&] { return closed_.has_value(); });
    const std::lock_guard lock(mutex_);
    return closed_->error;
  }
  /// The error that it closed with; fails the test where there is none.
  Error wait_error() {
    const auto error = wait_closed();
    if (error) return *error;
    ADD_FAILURE() << "closed in order";
    return {ErrorKind::kInternal, ""};
  }
  ByteVector received() const { return locked(received_); }
  int opens() const { return locked(opens_); }
  int drains() const { return locked(drains_); }
  int calls_after_close() const { return locked(calls_after_close_); }

 private:
  void on_open(SecureStream&) override {
    note([&] { ++opens_; }, when_open);
  }
  void on_bytes(SecureStream&, std::span<const std::byte> bytes) override {
    note([&] { received_.insert(received_.end(), bytes.begin(), bytes.end()); }, when_bytes);
  }
  void on_drained(SecureStream&) override {
    note([&] { ++drains_; }, when_drained);
  }
  void on_closed(SecureStream&, const std::optional<Error>& error) override {
    note([&] { closed_ = Closed{error}; }, when_closed);
  }

  template <class Action>
  void note(const Action& action, const Hook& hook) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) ++calls_after_close_;
      action();
      changed_.notify_all();
    }
    if (hook) hook(*this);
  }
  void wait(const char* what, const std::function<bool()>& condition) {
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait_for(lock, kPatience, [&] { return condition() || closed_; });
    if (came && condition()) return;
    const std::string why = closed_ && closed_->error ? std::string("; it closed: ") + closed_->error->what() : "";
    throw Error(ErrorKind::kTimeout, std::string("waiting for ") + what + why);
  }
  template <class Type>
  Type locked(const Type& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }

  Loop& loop_;
  const TlsRole role_;
  const SharedCredentials credentials_;
  SecureStream::Options options_;
  std::unique_ptr<SecureStream> stream_;  // on the loop
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int opens_ = 0;
  int drains_ = 0;
  int calls_after_close_ = 0;
  ByteVector received_;
  std::optional<Closed> closed_;
};

/// A client and a server, each on a loop of its own.
struct Ends {
  explicit Ends(SharedCredentials of_client = key_of(1), SharedCredentials of_server = key_of(1),
                SecureStream::Options client_options = {}, SecureStream::Options server_options = {})
      : client(client_loop, TlsRole::kClient, std::move(of_client), std::move(client_options)),
        server(server_loop, TlsRole::kServer, std::move(of_server), std::move(server_options)) {}

  void begin() {
    TcpPair pair = make_tcp_pair();
    server.begin(std::move(pair.server));
    client.begin(std::move(pair.client));
  }
  void open() {
    begin();
    client.wait_open();
    server.wait_open();
  }

  Loop client_loop{"client"};
  Loop server_loop{"server"};
  End client;
  End server;
};

/// The other end of a stream, played by a test: a socket and, if needed, a TLS session.
class RawEnd {
 public:
  explicit RawEnd(Fd socket) : socket_(std::move(socket)) {}

  void send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      wait_for(POLLOUT);
      const auto sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0) throw std::runtime_error("the stream does not take bytes");
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
  }
  /// Some bytes; none at the end.
  ByteVector receive() {
    wait_for(POLLIN);
    ByteVector bytes(std::size_t{1} << 16);
    const auto got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }
  ByteVector receive_all() {
    ByteVector all;
    for (auto some = receive(); !some.empty(); some = receive()) all.insert(all.end(), some.begin(), some.end());
    return all;
  }
  /// Carries out a client's handshake. Returns what it sent, flight by flight.
  std::vector<ByteVector> shake_hands(transport::TlsSession& session) {
    std::vector<ByteVector> flights;
    ByteVector answer;
    for (;;) {
      session.give(answer);
      const bool done = session.handshake();
      if (!session.output().empty()) {
        flights.push_back(std::exchange(session.output(), {}));
        send(flights.back());
      }
      if (done) return flights;
      answer = receive();
      if (answer.empty()) throw std::runtime_error("the stream ended the handshake");
    }
  }
  /// Closes with a reset.
  void reset() {
    const linger now{1, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    socket_.reset();
  }
  void close() { socket_.reset(); }
  int fd() const { return socket_.get(); }

 private:
  void wait_for(short events) {
    pollfd ready{socket_.get(), events, 0};
    const auto limit = static_cast<int>(std::chrono::milliseconds(kPatience).count());
    if (::poll(&ready, 1, limit) <= 0) throw std::runtime_error("the stream says nothing");
  }
  Fd socket_;
};

}  // namespace atl::test
