// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/stream/credentials.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <utility>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "atoll/core/bytes.h"
#include "atoll/core/error.h"
#include "atoll/core/fd.h"
#include "atoll/transport/auth.h"
#include "atoll/transport/stream/tls_session.h"

namespace atl::transport {

namespace {

constexpr std::string_view kIdentity = "atoll";  // of the one key that both ends hold
constexpr unsigned char kSessionContext[] = {'a', 't', 'o', 'l', 'l'};
constexpr unsigned char kAes128Gcm[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256

bool has_aes_instructions() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  unsigned int a = 0;
  unsigned int b = 0;
  unsigned int c = 0;
  unsigned int d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_AES) != 0;
#elif defined(__aarch64__)
  return (getauxval(AT_HWCAP) & HWCAP_AES) != 0;
#else
  return false;
#endif
}

std::string last_reason() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason != nullptr ? reason : "unknown reason";
}

void check(bool done, const char* what) {
  if (!done) throw Error(ErrorKind::kUnavailable, std::string("OpenSSL cannot ") + what + ": " + last_reason());
}

/// Makes a new session each time, because a handshake writes into it. The caller owns it; null when out of memory.
SSL_SESSION* make_session(SSL* ssl) {
  const auto* const state = static_cast<const Credentials::State*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  SSL_SESSION* const session = SSL_SESSION_new();
  if (session == nullptr) return nullptr;
  const auto& key = state->pre_shared_key;
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(ssl, kAes128Gcm);  // stands for its hash, which both suites share
  if (cipher != nullptr &&
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key.data()), key.size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
      SSL_SESSION_set1_id_context(session, kSessionContext, sizeof kSessionContext) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

int offer_key(SSL* ssl, const EVP_MD* /*digest*/, const unsigned char** identity, std::size_t* identity_bytes,
              SSL_SESSION** session) {
  *session = make_session(ssl);
  *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *identity_bytes = kIdentity.size();
  return *session != nullptr ? 1 : 0;
}

int find_key(SSL* ssl, const unsigned char* identity, std::size_t identity_bytes, SSL_SESSION** session) {
  // For a stranger's identity the handshake continues without a key, and fails for lack of another proof.
  *session = nullptr;
  if (std::string_view(reinterpret_cast<const char*>(identity), identity_bytes) != kIdentity) return 1;
  *session = make_session(ssl);
  return *session != nullptr ? 1 : 0;
}

int no_password(char* /*buffer*/, int /*size*/, int /*writing*/, void* /*data*/) { return -1; }

/// Reports what OpenSSL does not say about a file that it cannot open.
void expect_readable(const std::string& path, const char* what) {
  if (::access(path.c_str(), R_OK) == 0) return;
  const int error = errno;
  throw Error(ErrorKind::kUnavailable, with_errno(std::string("cannot read ") + what + " " + path, error));
}

void expect_loaded(bool loaded, const std::string& path, const char* what) {
  if (!loaded) {
    throw Error(ErrorKind::kInvalidArgument,
                path + " is not " + what + " in PEM form without a password: " + last_reason());
  }
}

void trust(SSL_CTX* tls, const std::string& authorities_file) {
  expect_readable(authorities_file, "the authorities' certificates");
  expect_loaded(SSL_CTX_load_verify_file(tls, authorities_file.c_str()) == 1, authorities_file,
                "a list of certificates");
  // An authority need not be a root.
  X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(tls), X509_V_FLAG_PARTIAL_CHAIN);
}

constexpr mode_t kOthers = S_IRWXG | S_IRWXO;
constexpr std::size_t kMaxFileBytes = kMaxKeyBytes + 64;  // with the line ends after the key

[[noreturn]] void fail(ErrorKind kind, const std::string& path, const std::string& why) {
  throw Error(kind, "key file " + path + " " + why);
}

[[noreturn]] void fail_with_errno(const std::string& path, const char* why, int error) {
  fail(ErrorKind::kUnavailable, path, with_errno(why, error));
}

/// Opens a file for reading. Throws Error(kInvalidArgument) when users other than its owner may read or change it,
/// kUnavailable when it cannot be read.
Fd open_private(const std::string& path) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file) fail_with_errno(path, "cannot be opened", errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_with_errno(path, "cannot be examined", errno);
  if (S_ISDIR(status.st_mode)) fail(ErrorKind::kUnavailable, path, "is a folder");
  if ((status.st_mode & kOthers) == 0) return file;
  char mode[8];
  std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(status.st_mode & 07777));
  fail(ErrorKind::kInvalidArgument, path,
       std::string("has mode ") + mode + ": users other than its owner can access it; run chmod 600 " + path);
}

/// Reads at most `limit` bytes.
std::vector<std::byte> read_all(const Fd& file, const std::string& path, std::size_t limit) {
  std::vector<std::byte> bytes(limit);
  std::size_t count = 0;
  while (count < limit) {
    const auto got = retried([&] { return ::read(file.get(), bytes.data() + count, limit - count); });
    if (got < 0) fail_with_errno(path, "cannot be read", errno);
    if (got == 0) break;
    count += static_cast<std::size_t>(got);
  }
  bytes.resize(count);
  return bytes;
}

}  // namespace

Credentials::State::State(CredentialsKind kind_of_proof) : kind(kind_of_proof), context(SSL_CTX_new(TLS_method())) {
  ERR_clear_error();
  SSL_CTX* const tls = context.get();
  check(tls != nullptr, "make a TLS context");
  check(SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION) == 1, "use TLS 1.3");
  check(SSL_CTX_set_max_proto_version(tls, TLS1_3_VERSION) == 1, "use TLS 1.3");
  // A server takes the client's first choice: a client, such as a robot, usually has the slower processor.
  const char* const suites = has_aes_instructions() ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                                                    : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
  check(SSL_CTX_set_ciphersuites(tls, suites) == 1, "use AES-GCM and ChaCha20");
  SSL_CTX_set_security_level(tls, 2);
  SSL_CTX_set_options(tls, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_num_tickets(tls, 0);
  SSL_CTX_set_max_early_data(tls, 0);
  SSL_CTX_set_session_cache_mode(tls, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  // With a key neither end holds a certificate or trusts any, so the key is the only way in.
  SSL_CTX_set_verify(tls, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_default_passwd_cb(tls, no_password);
  check(SSL_CTX_set_session_id_context(tls, kSessionContext, sizeof kSessionContext) == 1, "name its sessions");
}

Credentials::State::~State() { OPENSSL_cleanse(pre_shared_key.data(), pre_shared_key.size()); }

Credentials::Credentials(std::unique_ptr<State> state) : state_(std::move(state)) {}

Credentials::~Credentials() = default;

std::shared_ptr<const Credentials> Credentials::of_key(std::span<const std::byte> key) {
  if (key.size() < kMinKeyBytes) {
    throw Error(ErrorKind::kInvalidArgument, "a key of ", key.size(), " bytes is too short; at least ", kMinKeyBytes,
                " are needed");
  }
  auto state = std::make_unique<State>(CredentialsKind::kKey);
  // HKDF-Extract (RFC 5869): the key is the message, because as the key of an HMAC it would equal itself followed by
  // zeros.
  state->pre_shared_key = hmac_sha256(as_byte_span("atoll: pre-shared key of TLS 1.3"), {key});
  check(SSL_CTX_set_app_data(state->context.get(), state.get()) == 1, "keep a key");
  SSL_CTX_set_psk_use_session_callback(state->context.get(), offer_key);
  SSL_CTX_set_psk_find_session_callback(state->context.get(), find_key);
  return std::make_shared<const Credentials>(std::move(state));
}

std::shared_ptr<const Credentials> Credentials::of_key_file(const std::string& path) {
  auto key = read_key_file(path);
  auto credentials = of_key(key);
  OPENSSL_cleanse(key.data(), key.size());
  return credentials;
}

std::shared_ptr<const Credentials> Credentials::of_certificates(const std::string& chain_file,
                                                                const std::string& key_file,
                                                                const std::string& authorities_file) {
  auto state = std::make_unique<State>(CredentialsKind::kCertificates);
  SSL_CTX* const tls = state->context.get();
  expect_readable(chain_file, "the certificate");
  expect_loaded(SSL_CTX_use_certificate_chain_file(tls, chain_file.c_str()) == 1, chain_file, "a certificate");
  expect_readable(key_file, "the certificate's key");
  open_private(key_file);
  expect_loaded(
      SSL_CTX_use_PrivateKey_file(tls, key_file.c_str(), SSL_FILETYPE_PEM) == 1 && SSL_CTX_check_private_key(tls) == 1,
      key_file, "the key of that certificate");
  trust(tls, authorities_file);
  return std::make_shared<const Credentials>(std::move(state));
}

std::shared_ptr<const Credentials> Credentials::of_authorities(const std::string& authorities_file) {
  auto state = std::make_unique<State>(CredentialsKind::kCertificates);
  if (authorities_file.empty()) {
    check(SSL_CTX_set_default_verify_paths(state->context.get()) == 1, "read the system's authorities");
  } else {
    trust(state->context.get(), authorities_file);
  }
  return std::make_shared<const Credentials>(std::move(state));
}

std::vector<std::byte> read_key_file(const std::string& path, std::size_t least) {
  auto key = read_all(open_private(path), path, kMaxFileBytes);
  // The line ends after a key, of any number and kind, are not part of it: a copy that went through an editor is the
  // same key.
  while (!key.empty() && (key.back() == std::byte{'\n'} || key.back() == std::byte{'\r'})) key.pop_back();
  if (key.size() > kMaxKeyBytes) {
    fail(ErrorKind::kInvalidArgument, path,
         "holds more than " + std::to_string(kMaxKeyBytes) + " bytes, so it is not a key");
  }
  if (key.size() < least) {
    fail(ErrorKind::kInvalidArgument, path,
         "holds " + std::to_string(key.size()) + " bytes; at least " + std::to_string(least) + " are needed");
  }
  return key;
}

void make_key_file(const std::string& path) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
  if (!file) {
    const int error = errno;
    if (error == EEXIST) fail(ErrorKind::kInvalidArgument, path, "already exists; choose another name");
    fail_with_errno(path, "cannot be made", error);
  }
  std::array<std::byte, 32> random;
  fill_random(random);
  const std::string line = hex(random) + "\n";
  OPENSSL_cleanse(random.data(), random.size());
  int error = write_all(file, as_byte_span(line));
  if (error == 0 && ::fsync(file.get()) != 0) error = errno;
  if (error != 0) {
    ::unlink(path.c_str());
    fail_with_errno(path, "cannot be written", error);
  }
}

}  // namespace atl::transport
