// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "atoll/core/error.h"
#include "atoll/transport/stream/credentials.h"

namespace atl::transport {

/// One end of a TLS connection, as error messages describe it.
struct TlsSide {
  CredentialsKind kind = CredentialsKind::kKey;
  TlsRole role = TlsRole::kClient;
  bool is_open = false;  ///< the handshake is over
  std::string name{};    ///< of the other end: "10.0.0.2:4711"
  std::string host{};    ///< whose certificate a client accepts
};

/// Takes all of the calling thread's OpenSSL errors and returns the most specific one; 0 if there is none.
unsigned long take_tls_error() noexcept;

/// Explains that error. kRefused: the other end has no key, another one, or no valid certificate, or does not accept
/// this side's; kProtocol: what it sends is not TLS 1.3. `verify_result` is the result of SSL_get_verify_result.
Error explain_tls_failure(const TlsSide& side, unsigned long code, long verify_result);

/// Explains an alert that the other end sent (RFC 8446 section 6).
Error explain_tls_alert(const TlsSide& side, int alert);

}  // namespace atl::transport
