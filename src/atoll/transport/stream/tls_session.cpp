// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/stream/tls_session.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/sslerr.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "atoll/transport/address.h"

namespace atl::transport {

/// Reads from the input and appends to the output. Writes never block, so only reads have to wait.
struct TlsSession::Bio {
  static int write(BIO* bio, const char* data, int size) {
    BIO_clear_retry_flags(bio);
    auto& output = static_cast<Wire*>(BIO_get_data(bio))->output;
    const auto* const bytes = reinterpret_cast<const std::byte*>(data);
    try {
      output.insert(output.end(), bytes, bytes + size);
    } catch (const std::bad_alloc&) {
      return -1;
    }
    return size;
  }

  static int read(BIO* bio, char* data, int size) {
    BIO_clear_retry_flags(bio);
    auto& input = static_cast<Wire*>(BIO_get_data(bio))->input;
    const std::size_t count = std::min(static_cast<std::size_t>(std::max(size, 0)), input.size());
    if (count == 0) {
      BIO_set_retry_read(bio);
      return -1;
    }
    std::memcpy(data, input.data(), count);
    input = input.subspan(count);
    return static_cast<int>(count);
  }

  static long control(BIO* /*bio*/, int command, long /*number*/, void* /*data*/) {
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

  static int create(BIO* bio) {
    BIO_set_init(bio, 1);
    return 1;
  }

  static BIO_METHOD* make_method() {
    BIO_METHOD* const method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "atoll");
    if (method == nullptr) return nullptr;
    BIO_meth_set_write(method, &write);
    BIO_meth_set_read(method, &read);
    BIO_meth_set_ctrl(method, &control);
    BIO_meth_set_create(method, &create);
    return method;
  }

  /// Returns null when out of memory.
  static BIO* make(Wire& wire) {
    static const BIO_METHOD* const method = make_method();  // lives as long as the process
    BIO* const bio = method != nullptr ? BIO_new(method) : nullptr;
    if (bio != nullptr) BIO_set_data(bio, &wire);
    return bio;
  }
};

namespace {

std::string other_end(const TlsSide& side) { return "the other end at " + side.name; }

Error refused(const TlsSide& side, const std::string& why) {
  return {ErrorKind::kRefused, other_end(side) + " " + why};
}

/// Returns whether an end rejects the other's identity with this alert.
bool is_refusal(const TlsSide& side, int alert) {
  switch (alert) {
    case SSL_AD_HANDSHAKE_FAILURE:
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_CERTIFICATE_EXPIRED:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_UNKNOWN_CA:
    case SSL_AD_ACCESS_DENIED:
    case SSL_AD_DECRYPT_ERROR:
    case SSL_AD_PROTOCOL_VERSION:
    case SSL_AD_INSUFFICIENT_SECURITY:
    case SSL_AD_UNKNOWN_PSK_IDENTITY:
    case SSL_AD_CERTIFICATE_REQUIRED: return true;
    // During the handshake the answer to another key; later a fault of one of the two programs.
    case SSL_AD_ILLEGAL_PARAMETER:
    case SSL_AD_BAD_RECORD_MAC: return !side.is_open;
    default: return false;
  }
}

Error explain_certificate(const TlsSide& side, long verify_result) {
  if (side.kind == CredentialsKind::kKey) return refused(side, "shows a certificate instead of this key");
  if (verify_result == X509_V_ERR_HOSTNAME_MISMATCH || verify_result == X509_V_ERR_IP_ADDRESS_MISMATCH) {
    return refused(side, "shows a certificate that is not for \"" + side.host + "\"");
  }
  return refused(
      side, std::string("shows a certificate that is not accepted: ") + X509_verify_cert_error_string(verify_result));
}

/// Takes all of the calling thread's OpenSSL errors and returns the most specific one; 0 if there is none.
unsigned long take_tls_error() noexcept {
  unsigned long found = 0;
  while (const unsigned long code = ERR_get_error()) {
    if (found == 0 || (ERR_GET_LIB(found) != ERR_LIB_SSL && ERR_GET_LIB(code) == ERR_LIB_SSL)) found = code;
  }
  return found;
}

/// Explains an alert that the other end sent (RFC 8446 section 6).
Error explain_alert(const TlsSide& side, int alert) {
  const std::string said = std::string(" (TLS alert: ") + SSL_alert_desc_string_long(alert) + ")";
  if (!is_refusal(side, alert)) {
    return {ErrorKind::kProtocol, other_end(side) + " ended the connection because of an error" + said};
  }
  if (alert == SSL_AD_PROTOCOL_VERSION) return refused(side, "does not speak TLS 1.3" + said);
  if (side.kind == CredentialsKind::kKey) return refused(side, "does not hold this key, or wants certificates" + said);
  if (alert == SSL_AD_HANDSHAKE_FAILURE) return refused(side, "has no certificate, or wants a key instead" + said);
  return refused(side, "does not accept the certificate of this side" + said);
}

/// Explains OpenSSL's error. kRefused: the other end has no key, another one, or no valid certificate, or does not
/// accept this side's; kProtocol: what it sends is not TLS 1.3. `verify_result` is that of SSL_get_verify_result.
Error explain_failure(const TlsSide& side, unsigned long code, long verify_result) {
  const int reason = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
  const bool has_key = side.kind == CredentialsKind::kKey;
  if (reason >= SSL_AD_REASON_OFFSET) return explain_alert(side, reason - SSL_AD_REASON_OFFSET);
  switch (reason) {
    case SSL_R_BINDER_DOES_NOT_VERIFY: return refused(side, "does not hold this key");
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_SHARED_CIPHER:
      return refused(side, has_key ? "shows no key" : "has no kind of certificate in common with this side");
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE: return refused(side, "shows no certificate");
    case SSL_R_CERTIFICATE_VERIFY_FAILED: return explain_certificate(side, verify_result);
    case SSL_R_BAD_SIGNATURE: return refused(side, "does not hold the key of the certificate that it shows");
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_NO_PROTOCOLS_AVAILABLE:
    case SSL_R_WRONG_SSL_VERSION: return refused(side, "does not speak TLS 1.3");
    case SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC:
    case SSL_R_DIGEST_CHECK_FAILED:
      if (!side.is_open) {
        return refused(side, has_key ? "does not hold this key, or plays back an old connection"
                                     : "does not know what both ends agreed on: it plays back an old connection");
      }
      return {ErrorKind::kProtocol, other_end(side) + " sent bytes that were changed on the way"};
    default: break;
  }
  const char* const text = ERR_reason_error_string(code);
  return {ErrorKind::kProtocol, other_end(side) +
                                    (side.is_open ? " sent what TLS 1.3 forbids: " : " does not speak TLS 1.3: ") +
                                    (text != nullptr ? text : "no reason is known")};
}

}  // namespace

TlsSession::TlsSession(std::shared_ptr<const Credentials> credentials, TlsRole role, std::string name, std::string host)
    : credentials_(std::move(credentials)),
      side_{credentials_->state().kind, false, std::move(name), std::move(host)},
      ssl_(SSL_new(credentials_->state().context.get())) {
  BIO* const bio = ssl_ ? Bio::make(wire_) : nullptr;
  if (bio == nullptr) {
    throw Error(ErrorKind::kUnavailable, "OpenSSL cannot open a connection with " + side_.name + ": out of memory");
  }
  SSL_set_bio(ssl_.get(), bio, bio);
  if (role == TlsRole::kServer) {
    SSL_set_accept_state(ssl_.get());
  } else {
    SSL_set_connect_state(ssl_.get());
    if (side_.kind == CredentialsKind::kCertificates) name_host();
  }
}

void TlsSession::name_host() {
  std::string host = side_.host;
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  bool done = !host.empty();
  if (parse_ip(host, 0)) {
    host.resize(std::min(host.size(), host.find('%')));
    done = done && X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), host.c_str()) == 1;
  } else {
    SSL_set_hostflags(ssl_.get(), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    done =
        done && SSL_set1_host(ssl_.get(), host.c_str()) == 1 && SSL_set_tlsext_host_name(ssl_.get(), host.c_str()) == 1;
  }
  ERR_clear_error();
  if (!done) {
    throw Error(ErrorKind::kInvalidArgument, "\"" + side_.host + "\" is not a host name, so the certificate of " +
                                                 side_.name + " cannot be checked");
  }
}

Error TlsSession::explain() const {
  return explain_failure(side_, take_tls_error(), SSL_get_verify_result(ssl_.get()));
}

void TlsSession::expect_proof() const {
  const bool by_key = SSL_session_reused(ssl_.get()) == 1;
  const bool by_certificate =
      SSL_get0_peer_certificate(ssl_.get()) != nullptr && SSL_get_verify_result(ssl_.get()) == X509_V_OK;
  if (side_.kind == CredentialsKind::kKey ? by_key : by_certificate && !by_key) return;
  throw refused(side_, "has not shown that it is genuine");
}

bool TlsSession::handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) {
    expect_proof();
    side_.is_open = true;
    return true;
  }
  const int error = SSL_get_error(ssl_.get(), result);
  if (error == SSL_ERROR_WANT_READ) return false;
  if (error == SSL_ERROR_ZERO_RETURN) {
    throw Error(ErrorKind::kPeerLost, other_end(side_) + " ended the connection during the handshake");
  }
  throw explain();
}

std::size_t TlsSession::read(std::span<std::byte> into) {
  if (failure_) throw Error(*failure_);
  std::size_t count = 0;
  while (count < into.size()) {
    std::size_t got = 0;
    ERR_clear_error();
    if (SSL_read_ex(ssl_.get(), into.data() + count, into.size() - count, &got) == 1) {
      count += got;
      continue;
    }
    const int error = SSL_get_error(ssl_.get(), 0);
    if (error == SSL_ERROR_WANT_READ) break;
    if (error == SSL_ERROR_ZERO_RETURN) {
      ended_ = true;
      break;
    }
    failure_ = explain();
    if (count == 0) throw Error(*failure_);
    break;
  }
  return count;
}

std::size_t TlsSession::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return 0;
  if (records_ >= records_per_key_) renew_key();
  std::size_t taken = 0;
  ERR_clear_error();
  if (SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &taken) == 1) {
    ++records_;
    return taken;
  }
  if (SSL_get_error(ssl_.get(), 0) == SSL_ERROR_WANT_READ) return 0;
  throw explain();
}

/// Schedules a key update, which OpenSSL does not do by itself; the next write announces it to the other end first.
/// While OpenSSL waits for the rest of a message it cannot, and then the next write waits as well.
void TlsSession::renew_key() noexcept {
  if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return ERR_clear_error();
  records_ = 0;
  ++key_renewals_;
}

void TlsSession::say_goodbye() noexcept {
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
  ERR_clear_error();
}

}  // namespace atl::transport
