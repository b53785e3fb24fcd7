// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>

// Certificates for tests, made as they are needed.
namespace atl::test {

struct FreeOpenSsl {
  void operator()(EVP_PKEY* key) const noexcept { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const noexcept { X509_free(certificate); }
  void operator()(X509_EXTENSION* extension) const noexcept { X509_EXTENSION_free(extension); }
  void operator()(BIO* bio) const noexcept { BIO_free(bio); }
};
template <class Type>
using OpenSsl = std::unique_ptr<Type, FreeOpenSsl>;

inline void expect_made(bool made, const char* what) {
  if (!made) throw std::runtime_error(std::string("cannot make ") + what);
}

inline OpenSsl<EVP_PKEY> make_private_key() {
  OpenSsl<EVP_PKEY> key(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"));
  expect_made(key != nullptr, "a private key");
  return key;
}

template <class Write>
std::string pem_of(const Write& write) {
  const OpenSsl<BIO> bio(BIO_new(BIO_s_mem()));
  expect_made(bio != nullptr && write(bio.get()) == 1, "PEM");
  char* text = nullptr;
  const long length = BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<std::size_t>(length)};
}

struct CertificateFiles {
  std::string chain;  ///< PEM
  std::string key;    ///< PEM
};

/// The content of a certificate. `alternatives` as in "DNS:localhost,IP:127.0.0.1"; empty: none. Times from now.
struct CertificateText {
  std::string name;
  std::string alternatives;
  std::chrono::seconds from = -std::chrono::hours(1);
  std::chrono::seconds until = std::chrono::hours(1);
};

/// Signs certificates, and its own.
class Authority {
 public:
  explicit Authority(const std::string& name) : key_(make_private_key()) {
    certificate_ = sign({.name = name, .alternatives = ""}, key_.get(), true);
  }

  std::string pem() const { return pem_of(certificate_.get()); }

  CertificateFiles issue(const CertificateText& text) const {
    const auto key = make_private_key();
    const auto certificate = sign(text, key.get(), false);
    return {pem_of(certificate.get()), test::pem_of([&](BIO* bio) {
              return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
            })};
  }

 private:
  static std::string pem_of(X509* certificate) {
    return test::pem_of([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
  }

  static void extend(X509* certificate, int nid, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, nullptr, certificate, nullptr, nullptr, 0);
    const OpenSsl<X509_EXTENSION> extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
    expect_made(extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1, value.c_str());
  }

  OpenSsl<X509> sign(const CertificateText& text, EVP_PKEY* key, bool is_own) const {
    static long serial = 1;
    OpenSsl<X509> made(X509_new());
    expect_made(made != nullptr, "a certificate");
    X509_set_version(made.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), serial++);
    X509_gmtime_adj(X509_getm_notBefore(made.get()), text.from.count());
    X509_gmtime_adj(X509_getm_notAfter(made.get()), text.until.count());
    X509_set_pubkey(made.get(), key);
    X509_NAME* const subject = X509_get_subject_name(made.get());
    const auto* const name = reinterpret_cast<const unsigned char*>(text.name.c_str());
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, name, -1, -1, 0);
    X509_set_issuer_name(made.get(), is_own ? subject : X509_get_subject_name(certificate_.get()));
    if (is_own) extend(made.get(), NID_basic_constraints, "critical,CA:TRUE");
    if (!text.alternatives.empty()) extend(made.get(), NID_subject_alt_name, text.alternatives);
    expect_made(X509_sign(made.get(), key_.get(), EVP_sha256()) > 0, "a signature");
    return made;
  }

  OpenSsl<EVP_PKEY> key_;
  OpenSsl<X509> certificate_;
};

}  // namespace atl::test
