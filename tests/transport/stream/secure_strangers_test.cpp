// SPDX-License-Identifier: Apache-2.0
// Strangers that must be refused, and the errors of both ends.
#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/ssl.h>

#include <string>

#include "atoll/core/bytes.h"
#include "tests/transport/endpoint/support.h"
#include "tests/transport/stream/certificates.h"
#include "tests/transport/stream/secure_support.h"
#include "tests/transport/temporary_folder.h"

namespace atl::test {
namespace {

using std::chrono::milliseconds;
using transport::Credentials;

void expect_error(const Error& error, ErrorKind kind, const std::string& part) {
  EXPECT_EQ(error.kind(), kind) << error.what();
  EXPECT_TRUE(contains(error, part)) << error.what();
}

/// Both ends refuse each other and no server ever opens.
void expect_refusal(Ends& ends, const std::string& client_says, const std::string& server_says) {
  ends.begin();
  ends.client.send(random_bytes(100'000, 1));
  expect_error(ends.server.wait_error(), ErrorKind::kRefused, server_says);
  expect_error(ends.client.wait_error(), ErrorKind::kRefused, client_says);
  EXPECT_EQ(ends.server.opens(), 0);
  EXPECT_TRUE(ends.server.received().empty());
  EXPECT_TRUE(ends.client.received().empty());
}

// Proves I-7.
TEST(Strangers, AnotherKeyIsRefused) {
  Ends ends(key_of(1), key_of(2));
  expect_refusal(ends, "the other end at the-server:1 does not hold this key",
                 "the other end at the-client:1 does not hold this key");
  EXPECT_EQ(ends.client.opens(), 0);
}

TEST(Strangers, AKeyThatDiffersInItsLengthIsAnother) {
  Ends ends(Credentials::of_key(ByteVector(32)), Credentials::of_key(ByteVector(33)));
  expect_refusal(ends, "does not hold this key", "does not hold this key");
}

class Certificates : public ::testing::Test {
 protected:
  /// Loads a certificate of `issuer`, which trusts those of `trusted`.
  SharedCredentials make(const Authority& issuer, const CertificateText& text, const Authority& trusted) {
    const std::string number = std::to_string(count_++);
    const auto issued = issuer.issue(text);
    return Credentials::of_certificates(folder_.write("chain" + number, issued.chain),
                                        folder_.write("key" + number, issued.key),
                                        folder_.write("authorities" + number, trusted.pem()));
  }
  SharedCredentials client() { return make(authority_, {.name = "robot", .alternatives = ""}, authority_); }
  SharedCredentials server() { return make(authority_, kServer, authority_); }

  const CertificateText kServer{.name = "server", .alternatives = "DNS:server.example,IP:127.0.0.1,IP:::1"};
  const Authority authority_{"authority"};
  const Authority foreign_{"foreign"};

 private:
  TemporaryFolder folder_;
  int count_ = 0;
};

TEST_F(Certificates, OpenAStreamToEachNameOfTheServer) {
  for (const std::string host : {"server.example", "127.0.0.1", "::1", "[::1]"}) {
    SCOPED_TRACE(host);
    Ends ends(client(), server(), {.host = host});
    ends.open();
    const auto bytes = random_bytes(100'000, 2);
    ends.client.send(bytes);
    ends.server.send(bytes);
    EXPECT_TRUE(ends.server.wait_received(bytes.size()) == bytes);
    EXPECT_TRUE(ends.client.wait_received(bytes.size()) == bytes);
    ends.server.close();
    EXPECT_FALSE(ends.client.wait_closed());
    EXPECT_FALSE(ends.server.wait_closed());
  }
}

TEST_F(Certificates, AreForTheHostThatWasAskedFor) {
  for (const std::string host : {"elsewhere.example", "127.0.0.2", "server", "example"}) {
    Ends ends(client(), server(), {.host = host});
    expect_refusal(ends, "a certificate that is not for \"" + host + "\"",
                   "does not accept the certificate of this side");
    EXPECT_EQ(ends.client.opens(), 0);
  }
}

TEST_F(Certificates, NeedAHost) {
  Ends ends(client(), server());
  TcpPair sockets = make_tcp_pair();
  const Error error = error_of([&] { ends.client.begin(std::move(sockets.client)); });
  expect_error(error, ErrorKind::kInvalidArgument, "is not a host name");
}

TEST_F(Certificates, OfTheServerMayBeExpiredEarlyOrForeign) {
  CertificateText expired = kServer;
  expired.until = -std::chrono::minutes(1);
  CertificateText early = kServer;
  early.from = std::chrono::minutes(1);
  const SecureStream::Options options{.host = "server.example"};
  Ends late(client(), make(authority_, expired, authority_), options);
  expect_refusal(late, "certificate has expired", "does not accept the certificate of this side");
  Ends soon(client(), make(authority_, early, authority_), options);
  expect_refusal(soon, "not yet valid", "does not accept the certificate of this side");
  Ends unknown(client(), make(foreign_, kServer, authority_), options);
  expect_refusal(unknown, "is not accepted", "does not accept the certificate of this side");
}

TEST_F(Certificates, OfTheClientMayBeExpiredOrForeign) {
  const SecureStream::Options options{.host = "server.example"};
  const CertificateText expired{.name = "robot", .alternatives = "", .until = -std::chrono::minutes(1)};
  Ends late(make(authority_, expired, authority_), server(), options);
  expect_refusal(late, "does not accept the certificate of this side", "certificate has expired");
  Ends unknown(make(foreign_, {.name = "robot", .alternatives = ""}, authority_), server(), options);
  expect_refusal(unknown, "does not accept the certificate of this side", "is not accepted");
}

TEST_F(Certificates, AreNoKey) {
  Ends ends(client(), key_of(1), {.host = "server.example"});
  expect_refusal(ends, "wants a key", "shows no key");
  EXPECT_EQ(ends.client.opens(), 0);
}

TEST_F(Certificates, AreNotReplacedByAKey) {
  Ends ends(key_of(1), server());
  expect_refusal(ends, "shows a certificate instead of this key", "does not accept the certificate of this side");
  EXPECT_EQ(ends.client.opens(), 0);
}

/// A server and a raw connection to it.
class RawClient : public ::testing::Test {
 protected:
  void begin(SecureStream::Options options = {}) {
    TcpPair sockets = make_tcp_pair();
    server_ = std::make_unique<End>(loop_, TlsRole::kServer, key_of(1), std::move(options));
    server_->begin(std::move(sockets.server));
    raw_ = std::make_unique<RawEnd>(std::move(sockets.client));
  }
  /// Returns the server's error for bytes that a client sends first. It never opens.
  Error answer_to(std::span<const std::byte> bytes) {
    begin();
    raw_->send(bytes);
    Error error = server_->wait_error();
    EXPECT_EQ(server_->opens(), 0);
    return error;
  }

  Loop loop_{"server"};
  std::unique_ptr<End> server_;
  std::unique_ptr<RawEnd> raw_;
};

TEST_F(RawClient, SpeaksPlainText) {
  const Error error = answer_to(as_byte_span("GET / HTTP/1.1\r\nHost: server\r\n\r\n"));
  expect_error(error, ErrorKind::kProtocol, "the other end at the-client:1 does not speak TLS 1.3");
}

TEST_F(RawClient, SpeaksGarbage) {
  const std::vector<ByteVector> garbage{ByteVector(64, std::byte{0x55}), ByteVector(64), random_bytes(100'000, 3)};
  for (const auto& bytes : garbage) {
    EXPECT_EQ(answer_to(bytes).kind(), ErrorKind::kProtocol);
    raw_->close();
  }
}

/// The first message of a TLS client that has neither key nor certificate.
ByteVector bare_hello(int version) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  SSL_CTX_set_max_proto_version(context.get(), version);
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), &SSL_free);
  BIO* const output = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl.get(), BIO_new(BIO_s_mem()), output);
  SSL_connect(ssl.get());
  char* data = nullptr;
  const long length = BIO_get_mem_data(output, &data);
  const auto bytes = as_byte_span({data, static_cast<std::size_t>(length)});
  EXPECT_FALSE(bytes.empty());
  return {bytes.begin(), bytes.end()};
}

TEST_F(RawClient, HasNoKey) {
  expect_error(answer_to(bare_hello(TLS1_3_VERSION)), ErrorKind::kRefused,
               "the other end at the-client:1 shows no key");
}

TEST_F(RawClient, SpeaksAnOlderTls) {
  begin();
  raw_->send(bare_hello(TLS1_2_VERSION));
  const auto alert = raw_->receive_all();
  raw_->close();
  expect_error(server_->wait_error(), ErrorKind::kRefused, "does not speak TLS 1.3");
  ASSERT_EQ(alert.size(), 7U);
  EXPECT_EQ(alert[0], std::byte{21});  // an alert, fatal: protocol_version
  EXPECT_EQ(alert[5], std::byte{2});
  EXPECT_EQ(alert[6], std::byte{70});
}

TEST_F(RawClient, SaysNothing) {
  begin({.handshake_timeout = milliseconds(30)});
  expect_error(server_->wait_error(), ErrorKind::kTimeout, "the TLS handshake with the-client:1");
}

TEST_F(RawClient, SaysHalfOfAHelloAndEnds) {
  begin();
  const auto hello = bare_hello(TLS1_3_VERSION);
  raw_->send(std::span(hello).first(hello.size() / 2));
  raw_->close();
  expect_error(server_->wait_error(), ErrorKind::kPeerLost, "ended the connection during the handshake");
}

TEST_F(RawClient, PlaysBackWhatAnotherSaid) {
  begin();
  transport::TlsSession genuine(key_of(1), TlsRole::kClient, "the-server", "");
  const auto flights = raw_->shake_hands(genuine);
  ASSERT_EQ(flights.size(), 2U);
  server_->wait_open();
  EXPECT_EQ(genuine.write(random_bytes(100, 4)), 100U);
  const ByteVector message = genuine.output();
  raw_->send(message);
  server_->wait_received(100);

  begin();
  raw_->send(flights[0]);
  EXPECT_FALSE(raw_->receive().empty()) << "the first message is as good as before";
  raw_->send(flights[1]);
  raw_->send(message);
  expect_error(server_->wait_error(), ErrorKind::kRefused, "plays back an old connection");
  EXPECT_EQ(server_->opens(), 0);
  EXPECT_TRUE(server_->received().empty());
}

TEST_F(RawClient, ChangesBytesOnTheWay) {
  begin();
  transport::TlsSession genuine(key_of(1), TlsRole::kClient, "the-server", "");
  raw_->shake_hands(genuine);
  const auto bytes = random_bytes(5000, 5);
  EXPECT_EQ(genuine.write(bytes), bytes.size());
  const std::size_t first_record = genuine.output().size();
  EXPECT_EQ(genuine.write(bytes), bytes.size());
  ByteVector records = genuine.output();
  records[first_record + 100] ^= std::byte{1};
  raw_->send(records);
  expect_error(server_->wait_error(), ErrorKind::kProtocol, "changed on the way");
  EXPECT_TRUE(server_->received() == bytes) << "what came before is whole";
}

TEST_F(RawClient, IsToldWhyBeforeTheConnectionEnds) {
  // Bytes that the server never reads would turn its close into a reset, which overtakes the alert.
  begin();
  auto bytes = bare_hello(TLS1_2_VERSION);
  bytes.resize(bytes.size() + (1 << 20));
  raw_->send(bytes);
  EXPECT_EQ(raw_->receive_all().size(), 7U);
  raw_->close();
  expect_error(server_->wait_error(), ErrorKind::kRefused, "does not speak TLS 1.3");
}

TEST(Strangers, AServerThatIsSilentIsGivenUp) {
  TcpPair sockets = make_tcp_pair();
  Loop loop("client");
  End client(loop, TlsRole::kClient, key_of(1), {.handshake_timeout = milliseconds(30)});
  client.begin(std::move(sockets.client));
  expect_error(client.wait_error(), ErrorKind::kTimeout, "was not complete within 30 ms");
}

TEST(Strangers, AServerThatIsNoneIsNoTls) {
  TcpPair sockets = make_tcp_pair();
  Loop loop("client");
  End client(loop, TlsRole::kClient, key_of(1));
  client.begin(std::move(sockets.client));
  RawEnd server(std::move(sockets.server));
  server.send(as_byte_span("SSH-2.0-OpenSSH_9.2\r\n"));
  EXPECT_FALSE(server.receive().empty());
  server.receive_all();
  server.close();
  expect_error(client.wait_error(), ErrorKind::kProtocol, "does not speak TLS 1.3");
  EXPECT_EQ(client.opens(), 0);
}

}  // namespace
}  // namespace atl::test
