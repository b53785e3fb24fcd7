// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/stream/blocking_stream.h"

#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/ssl.h>

#include <array>
#include <future>
#include <memory>
#include <string>

#include "atoll/core/bytes.h"
#include "tests/transport/endpoint/support.h"
#include "tests/transport/stream/certificates.h"
#include "tests/transport/stream/secure_support.h"
#include "tests/transport/temporary_folder.h"

namespace atl::test {
namespace {

using std::chrono::milliseconds;
using transport::BlockingStream;

constexpr std::size_t kManyBytes = std::size_t{20} << 20;  // more than the system holds

/// A listening socket, whose connections a test takes.
class Door {
 public:
  Door() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto any_port = transport::parse_ip("127.0.0.1", 0);
    if (::bind(listener_.get(), any_port->get(), any_port->length) != 0 || ::listen(listener_.get(), 1) != 0) {
      throw std::runtime_error("no listener for a test");
    }
  }
  transport::HostPort place() const { return {"127.0.0.1", transport::local_address(listener_.get()).port()}; }
  Fd take() const { return Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)); }

 private:
  Fd listener_;
};

Deadline soon() { return Deadline::after(kPatience); }

ByteVector receive_all_of(BlockingStream& stream, std::size_t count) {
  ByteVector bytes(count);
  for (std::span<std::byte> rest = bytes; !rest.empty();) rest = rest.subspan(stream.receive(rest, soon()));
  return bytes;
}

void expect_lost(BlockingStream& stream, const std::string& how) {
  std::array<std::byte, 10> buffer{};
  const Error error = error_of([&] { stream.receive(buffer, soon()); });
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_TRUE(contains(error, stream.name() + how)) << error.what();
}

TEST(BlockingStream, CarriesMoreThanTheSystemHoldsInClear) {
  const Door door;
  BlockingStream stream(door.place(), nullptr, soon());
  RawEnd server(door.take());
  const auto bytes = random_bytes(kManyBytes, 1);
  auto received = std::async(std::launch::async, [&] {
    ByteVector all;
    while (all.size() < kManyBytes) {
      const auto some = server.receive();
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  });
  stream.send(bytes, soon());
  EXPECT_TRUE(received.get() == bytes);
  server.send(std::span(bytes).first(1000));
  EXPECT_TRUE(receive_all_of(stream, 1000) == ByteVector(bytes.begin(), bytes.begin() + 1000));
  server.close();
  expect_lost(stream, " ended the connection");
}

/// A server with TLS that accepts in the background, because the client's constructor waits for it.
struct SecureDoor {
  explicit SecureDoor(SharedCredentials credentials) : server(loop, TlsRole::kServer, std::move(credentials)) {
    opened = std::async(std::launch::async, [this] { server.begin(door.take()); });
  }

  Door door;
  Loop loop{"server"};
  End server;
  std::future<void> opened;
};

TEST(BlockingStream, CarriesMoreThanTheSystemHoldsInTls) {
  SecureDoor there(key_of(1));
  BlockingStream stream(there.door.place(), key_of(1), soon());
  const auto bytes = random_bytes(kManyBytes, 2);
  stream.send(bytes, soon());
  EXPECT_TRUE(there.server.wait_received(kManyBytes) == bytes);
  there.server.send(bytes);
  EXPECT_TRUE(receive_all_of(stream, kManyBytes) == bytes);
  there.server.close();
  expect_lost(stream, " ended the connection");
}

TEST(BlockingStream, EveryWaitEndsAtItsDeadline) {
  const Door door;
  BlockingStream stream(door.place(), nullptr, soon());
  const Fd silent = door.take();
  const auto expect_timeout = [&](const auto& action) {
    const Error error = error_of(action);
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_TRUE(contains(error, " does not answer")) << error.what();
  };
  std::array<std::byte, 10> buffer{};
  expect_timeout([&] { stream.receive(buffer, Deadline::after(milliseconds(20))); });
  expect_timeout([&] { stream.send(ByteVector(kManyBytes), Deadline::after(milliseconds(20))); });
  expect_timeout([&] { BlockingStream(door.place(), key_of(1), Deadline::after(milliseconds(20))); });
}

TEST(BlockingStream, ABrokenConnectionIsALostPeer) {
  const Door door;
  BlockingStream stream(door.place(), nullptr, soon());
  RawEnd(door.take()).reset();
  expect_lost(stream, " broke the connection");
  EXPECT_EQ(error_of([&] { stream.send(ByteVector(1), soon()); }).kind(), ErrorKind::kPeerLost);
}

/// Certificates of one authority, in files.
class CertifiedServer : public ::testing::Test {
 protected:
  const Authority authority_{"authority"};
  const CertificateFiles issued_ = authority_.issue({.name = "server", .alternatives = "IP:127.0.0.1"});
  const TemporaryFolder folder_;
  const std::string authorities_ = folder_.write("authorities", authority_.pem());
  const std::string chain_ = folder_.write("chain", issued_.chain);
  const std::string key_ = folder_.write("key", issued_.key);
};

TEST_F(CertifiedServer, IsToldThatItIsNotAccepted) {
  SecureDoor there(transport::Credentials::of_certificates(chain_, key_, authorities_));
  const auto others = transport::Credentials::of_authorities(folder_.write("others", Authority("other").pem()));
  const Error error = error_of([&] { BlockingStream(there.door.place(), others, soon()); });
  EXPECT_EQ(error.kind(), ErrorKind::kRefused) << error.what();
  const Error told = there.server.wait_error();
  EXPECT_TRUE(contains(told, "does not accept the certificate of this side")) << told.what();
}

/// OpenSSL's own server, whose messages can be cut anywhere.
class RawServer {
 public:
  RawServer(const std::string& chain, const std::string& key, Fd socket)
      : context_(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free), ssl_(nullptr, &SSL_free), wire_(std::move(socket)) {
    SSL_CTX_use_certificate_chain_file(context_.get(), chain.c_str());
    SSL_CTX_use_PrivateKey_file(context_.get(), key.c_str(), SSL_FILETYPE_PEM);
    SSL_CTX_set_num_tickets(context_.get(), 0);
    SSL_CTX_set_max_send_fragment(context_.get(), 512);
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_bio(ssl_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    while (SSL_accept(ssl_.get()) != 1) {
      wire_.send(output());
      input();
    }
    wire_.send(output());
  }

  /// One byte, and then a message of TLS that takes several records.
  ByteVector byte_and_long_message() {
    SSL_write(ssl_.get(), "x", 1);
    ByteVector data(2000);
    SSL_SESSION_set1_ticket_appdata(SSL_get_session(ssl_.get()), data.data(), data.size());
    SSL_new_session_ticket(ssl_.get());
    SSL_do_handshake(ssl_.get());
    return output();
  }
  std::string read() {
    std::array<char, 100> text{};
    int count = 0;
    while ((count = SSL_read(ssl_.get(), text.data(), static_cast<int>(text.size()))) <= 0) input();
    return {text.data(), static_cast<std::size_t>(count)};
  }
  RawEnd& wire() { return wire_; }

 private:
  ByteVector output() {
    ByteVector bytes(static_cast<std::size_t>(BIO_pending(SSL_get_wbio(ssl_.get()))));
    BIO_read(SSL_get_wbio(ssl_.get()), bytes.data(), static_cast<int>(bytes.size()));
    return bytes;
  }
  void input() {
    const auto bytes = wire_.receive();
    if (bytes.empty()) throw std::runtime_error("the client has ended");
    BIO_write(SSL_get_rbio(ssl_.get()), bytes.data(), static_cast<int>(bytes.size()));
  }

  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
  RawEnd wire_;
};

TEST_F(CertifiedServer, SendingWaitsForTheRestOfAMessageOfTls) {
  const Door door;
  auto accepted = std::async(std::launch::async,  // because the client's constructor waits for it
                             [&] { return std::make_unique<RawServer>(chain_, key_, door.take()); });
  BlockingStream stream(door.place(), transport::Credentials::of_authorities(authorities_), soon());
  const auto server = accepted.get();
  const auto bytes = server->byte_and_long_message();
  ASSERT_GT(bytes.size(), 2000U);
  server->wire().send(std::span(bytes).first(bytes.size() - 100));
  ASSERT_TRUE(receive_all_of(stream, 1) == ByteVector{std::byte{'x'}});
  std::array<std::byte, 1> none{};
  EXPECT_EQ(error_of([&] { stream.receive(none, Deadline::after(milliseconds(20))); }).kind(), ErrorKind::kTimeout);
  const auto text = as_byte_span("hello");
  EXPECT_EQ(error_of([&] { stream.send(text, Deadline::after(milliseconds(20))); }).kind(), ErrorKind::kTimeout);
  server->wire().send(std::span(bytes).last(100));
  stream.send(text, soon());
  EXPECT_EQ(server->read(), "hello");
}

}  // namespace
}  // namespace atl::test
