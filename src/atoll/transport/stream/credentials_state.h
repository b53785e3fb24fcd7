// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/ssl.h>

#include <memory>

#include "atoll/transport/auth.h"
#include "atoll/transport/stream/credentials.h"

namespace atl::transport {

/// The part of Credentials that TlsSession uses.
struct Credentials::State {
  struct FreeContext {
    void operator()(SSL_CTX* context) const noexcept { SSL_CTX_free(context); }
  };

  explicit State(CredentialsKind kind_of_proof);
  ~State();

  const CredentialsKind kind;
  Mac pre_shared_key{};  // for kKey; derived from the key, which may serve other purposes too
  std::unique_ptr<SSL_CTX, FreeContext> context;
};

}  // namespace atl::transport
