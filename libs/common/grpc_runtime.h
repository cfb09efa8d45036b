#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "libs/common/health.h"
#include "libs/common/ids.h"

namespace grpc {
class Channel;
class Service;
}  // namespace grpc

namespace pageferry {

class Tls;

/// How one end proves who it is.
struct Credentials {
  /// For TCP addresses; null: clear text. Unix sockets and the health port are always clear text.
  std::shared_ptr<const Tls> tls;
  /// Listen in clear text on addresses that other hosts reach (`--insecure`).
  bool insecure = false;
};

/// Keepalive of both ends, set together: a server refuses clients that ping more often than it
/// accepts (design section 10).
struct Keepalive {
  absl::Duration interval = absl::Seconds(10);     ///< client: ping an idle connection
  absl::Duration timeout = absl::Seconds(5);       ///< both: no answer means dead
  absl::Duration min_accepted = absl::Seconds(5);  ///< server: pings closer than this are rude
};

struct GrpcServerOptions {
  /// "host:port" (port 0: any free one; IPv6 in brackets) or "unix:/path". At least one.
  std::vector<std::string> addresses;
  /// Borrowed; must outlive the server. The health service is added by the server.
  std::vector<grpc::Service*> services;
  /// One more port, in clear text on any address, that serves health and nothing else. Empty: none.
  std::string health_address;
  /// Names that the health service knows, beside ""; all begin as NOT_SERVING, "" as SERVING.
  std::vector<std::string> health_names;
  /// Bound of one message, both ways; a larger one is RESOURCE_EXHAUSTED.
  ByteCount max_message_bytes = ByteCount(4 << 20);
  /// Streams that one connection may have open; more wait.
  int32_t max_concurrent_streams = 4096;
  bool reflection = true;
  Keepalive keepalive;
  Credentials credentials;
};

/// A running gRPC server, with health and, if wanted, reflection.
///
/// Movable handle; all methods thread-safe but moves. The destructor shuts down at once. A taken
/// port is an error (SO_REUSEPORT is off). Unix sockets are 0660, guarded by a lock file, and
/// removed at shutdown (`unix_socket.h`).
class GrpcServer {
 public:
  /// Returns when all addresses are listened on, or none.
  /// kInvalidArgument, INVALID_FIELD: an address that does not parse or is not of this host; a
  /// message bound out of range.
  /// kFailedPrecondition, POLICY: an address that other hosts reach, without TLS or `insecure`.
  /// kUnavailable, IN_USE with "address": taken by another server.
  static absl::StatusOr<GrpcServer> Start(GrpcServerOptions options);

  GrpcServer(GrpcServer&&) noexcept;
  GrpcServer& operator=(GrpcServer&&) noexcept;
  ~GrpcServer();

  /// The bound addresses in the order of `addresses`, port 0 replaced by the real port.
  const std::vector<std::string>& addresses() const;
  /// The bound port of the first TCP address; 0 when there is none.
  int port() const;
  /// The bound port of `health_address`; 0 when there is none.
  int health_port() const;

  /// What the health service answers.
  HealthRegistry& health();

  /// Drains: health turns NOT_SERVING, new calls are refused, running ones may end until
  /// `deadline`, then they are cancelled. Returns when the last one has ended: a reactor that never
  /// calls Finish after its cancellation blocks for ever. Not from a reaction. Again: does nothing.
  void Shutdown(MonotonicTime deadline);

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct ChannelOptions {
  ByteCount max_message_bytes = ByteCount(4 << 20);  ///< both ways
  Keepalive keepalive;
  /// Wait between tries to connect: the first, and the longest; gRPC adds jitter.
  absl::Duration initial_backoff = absl::Milliseconds(100);
  absl::Duration max_backoff = absl::Seconds(30);
  /// A try to connect that takes longer has failed.
  absl::Duration connect_timeout = absl::Seconds(5);
  Credentials credentials;
};

/// A channel to `target` ("host:port", "unix:/path", "dns:///name:port"); it connects when first
/// used and reconnects by itself. Channels share no connection with each other and never go through
/// an HTTP proxy. Let go of the last reference with `ReleaseLater` (`release_later.h`) wherever
/// that may happen inside a reaction. Include <grpcpp/channel.h> where this is called.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target,
                                           const ChannelOptions& options = {});

}  // namespace pageferry
