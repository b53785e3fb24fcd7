// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/stream/tls_failure.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/sslerr.h>
#include <openssl/x509_vfy.h>

namespace atl::transport {

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

}  // namespace

unsigned long take_tls_error() noexcept {
  unsigned long found = 0;
  while (const unsigned long code = ERR_get_error()) {
    if (found == 0 || (ERR_GET_LIB(found) != ERR_LIB_SSL && ERR_GET_LIB(code) == ERR_LIB_SSL)) found = code;
  }
  return found;
}

Error explain_tls_alert(const TlsSide& side, int alert) {
  const std::string said = std::string(" (TLS alert: ") + SSL_alert_desc_string_long(alert) + ")";
  if (!is_refusal(side, alert)) {
    return {ErrorKind::kProtocol, other_end(side) + " ended the connection because of an error" + said};
  }
  if (alert == SSL_AD_PROTOCOL_VERSION) return refused(side, "does not speak TLS 1.3" + said);
  if (side.kind == CredentialsKind::kKey) return refused(side, "does not hold this key, or wants certificates" + said);
  if (alert == SSL_AD_HANDSHAKE_FAILURE) return refused(side, "has no certificate, or wants a key instead" + said);
  return refused(side, "does not accept the certificate of this side" + said);
}

Error explain_tls_failure(const TlsSide& side, unsigned long code, long verify_result) {
  const int reason = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
  const bool has_key = side.kind == CredentialsKind::kKey;
  if (reason >= SSL_AD_REASON_OFFSET) return explain_tls_alert(side, reason - SSL_AD_REASON_OFFSET);
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

}  // namespace atl::transport
