#include "libs/common/tls_options.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>

#include "absl/status/statusor.h"
#include "libs/common/clock.h"
#include "libs/common/error.h"
#include "libs/common/status.h"

namespace pageferry {
namespace {

using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;

absl::StatusOr<std::string> ReadFile(const char* flag, const std::string& path) {
  if (path.empty()) {
    return InvalidField(flag, "", "a file, for TLS takes --tls-cert, --tls-key and --tls-ca");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.fail() || text.empty()) return InvalidField(flag, path, "a file that can be read");
  return text;
}

Bio MakeBio(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free};
}

absl::StatusOr<Certificate> ParseCertificate(const char* flag, const std::string& path) {
  PAGEFERRY_ASSIGN_OR_RETURN(const std::string text, ReadFile(flag, path));
  Certificate certificate(PEM_read_bio_X509(MakeBio(text).get(), nullptr, nullptr, nullptr),
                          &X509_free);
  ERR_clear_error();
  if (certificate == nullptr) return InvalidField(flag, path, "a certificate in PEM");
  return certificate;
}

absl::StatusOr<Key> ParseKey(const std::string& path) {
  PAGEFERRY_ASSIGN_OR_RETURN(const std::string text, ReadFile("tls-key", path));
  // A key that asks for a passphrase gets none, instead of a prompt.
  const auto no_passphrase = [](char*, int, int, void*) { return 0; };
  Key key(PEM_read_bio_PrivateKey(MakeBio(text).get(), nullptr, no_passphrase, nullptr),
          &EVP_PKEY_free);
  ERR_clear_error();
  if (key == nullptr) return InvalidField("tls-key", path, "a private key in PEM, not encrypted");
  return key;
}

}  // namespace

void AddTlsFlags(Flags& flags, TlsOptions& tls) {
  flags.Group("TLS");
  flags.String("tls-cert", &tls.cert,
               "PEM file: this process's certificate, then those between it and the authority.");
  flags.String("tls-key", &tls.key, "PEM file: the certificate's key.");
  flags.String("tls-ca", &tls.ca, "PEM file: authorities that sign the certificates of others.");
  flags.Choice("tls-client-auth", &tls.client_auth, {"require", "none"},
               "what a client must show: a certificate, or nothing.");
  flags.Duration("tls-reload", &tls.reload, absl::Seconds(1), absl::Hours(24),
                 "how often the files are looked at for new content.");
  flags.Check([&tls] { return CheckTls(tls, RealClock::Get().WallNow()); });
}

absl::Status CheckTls(const TlsOptions& tls, absl::Time now) {
  if (!tls.enabled()) return absl::OkStatus();
  PAGEFERRY_ASSIGN_OR_RETURN(const Certificate certificate, ParseCertificate("tls-cert", tls.cert));
  PAGEFERRY_ASSIGN_OR_RETURN(const Key key, ParseKey(tls.key));
  PAGEFERRY_RETURN_IF_ERROR(ParseCertificate("tls-ca", tls.ca).status());
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    ERR_clear_error();
    return InvalidField("tls-key", tls.key, "the key of --tls-cert");
  }
  std::time_t seconds = absl::ToTimeT(now);
  if (X509_cmp_time(X509_get0_notBefore(certificate.get()), &seconds) > 0) {
    return InvalidField("tls-cert", tls.cert, "a certificate that is valid already");
  }
  if (X509_cmp_time(X509_get0_notAfter(certificate.get()), &seconds) < 0) {
    return InvalidField("tls-cert", tls.cert, "a certificate that has not expired");
  }
  return absl::OkStatus();
}

}  // namespace pageferry
