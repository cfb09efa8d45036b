#include "libs/common/tls.h"

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "libs/common/clock.h"
#include "libs/common/status.h"

namespace pageferry {
namespace {

/// gRPC 1.51 has no call for the least version of TLS, and takes the cipher list of 1.2 from the
/// environment when it first needs one. With suites for pre-shared keys alone, TLS 1.2 finds none
/// in common with a peer that has a certificate.
void RequireTls13() {
  static const bool done = [] {
    return setenv("GRPC_SSL_CIPHER_SUITES", "ECDHE-PSK-CHACHA20-POLY1305", 1) == 0;
  }();
  static_cast<void>(done);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tls>> Tls::Load(const TlsOptions& options) {
  if (!options.enabled()) return nullptr;
  PAGEFERRY_RETURN_IF_ERROR(CheckTls(options, RealClock::Get().WallNow()));
  RequireTls13();
  const auto files = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      options.key, options.cert, options.ca,
      static_cast<unsigned>(std::max<int64_t>(1, absl::ToInt64Seconds(options.reload))));

  grpc::experimental::TlsServerCredentialsOptions server(files);
  server.watch_identity_key_cert_pairs();
  server.watch_root_certs();
  server.set_cert_request_type(options.client_auth == "none"
                                   ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                   : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);

  grpc::experimental::TlsChannelCredentialsOptions channel;
  channel.set_certificate_provider(files);
  channel.watch_identity_key_cert_pairs();
  channel.watch_root_certs();

  std::shared_ptr<Tls> tls(new Tls);
  tls->server_ = grpc::experimental::TlsServerCredentials(server);
  tls->channel_ = grpc::experimental::TlsCredentials(channel);
  return tls;
}

}  // namespace pageferry
