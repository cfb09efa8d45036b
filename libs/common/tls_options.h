#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "libs/common/flags.h"

namespace pageferry {

/// How one process shows who it is, and whom it believes. All three files, or none.
struct TlsOptions {
  std::string cert;  ///< PEM: its certificate, and what lies between it and the authority
  std::string key;   ///< PEM: the key of that certificate
  std::string ca;    ///< PEM: authorities that peers must be signed by
  /// What a server asks of clients: "require" a certificate (mTLS), or "none".
  std::string client_auth = "require";
  /// How often the files are looked at for new content.
  absl::Duration reload = absl::Seconds(60);

  bool enabled() const { return !cert.empty() || !key.empty() || !ca.empty(); }
};

/// Adds --tls-cert, --tls-key, --tls-ca, --tls-client-auth, --tls-reload with their checks, which
/// read the files.
void AddTlsFlags(Flags& flags, TlsOptions& tls);

/// Reads the files and says what is wrong with them. kInvalidArgument, INVALID_FIELD naming the
/// flag: one is missing or cannot be read, is no PEM, the key is not the certificate's, or the
/// certificate has no validity at `now`. OK where TLS is not wanted.
absl::Status CheckTls(const TlsOptions& tls, absl::Time now);

}  // namespace pageferry
