#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "libs/common/tls_options.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace pageferry {

/// TLS 1.3 with those files, for all servers and channels of a process; files that change are read
/// again, and new connections use them. Servers' names are checked against the certificate.
///
/// Thread-safe. One thread watches the files.
class Tls {
 public:
  /// Null where TLS is not wanted. Errors as `CheckTls`.
  static absl::StatusOr<std::shared_ptr<const Tls>> Load(const TlsOptions& options);

  const std::shared_ptr<grpc::ServerCredentials>& server() const { return server_; }
  const std::shared_ptr<grpc::ChannelCredentials>& channel() const { return channel_; }

 private:
  Tls() = default;

  std::shared_ptr<grpc::ServerCredentials> server_;
  std::shared_ptr<grpc::ChannelCredentials> channel_;
};

}  // namespace pageferry
