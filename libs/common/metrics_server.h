#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/common/metrics.h"

namespace pageferry {

/// What a page answers.
struct PageReply {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

/// One more path on the metrics port. `path` is exact, such as "/status".
struct MetricsPage {
  std::string path;
  std::function<PageReply()> render;
};

struct MetricsServerOptions {
  /// host:port, port 0 for any free one. The host must be an IP address or a name of this host.
  std::string address = "127.0.0.1:0";
  /// Borrowed; must outlive the server. Not null.
  const MetricRegistry* registry = nullptr;
  /// /readyz answers 200 while it is OK, else 503 with its message. Null: always ready.
  std::function<absl::Status()> ready;
  /// /healthz answers 200 while it is OK, else 503: the process should be restarted. Null: healthy.
  std::function<absl::Status()> healthy;
  std::vector<MetricsPage> pages;
};

/// A small HTTP/1.1 server of /metrics, /healthz, /readyz and the given pages. GET and HEAD only
/// (405), anything else 404; nothing else is ever served. One thread; at most 64 connections, each
/// with one request of at most 8 KiB and 5 s from first to last byte, so that slow or hostile
/// clients hold up nobody. (Our own and not civetweb: Debian's has no IPv6 and takes 2 s to stop.)
///
/// Movable handle; the destructor stops at once. The functions run on the server's thread, one at a
/// time, and must not block.
class MetricsServer {
 public:
  /// kUnavailable, IN_USE with "address": the port is taken, choose another.
  /// kInvalidArgument, INVALID_FIELD: `address` does not parse or is none of this host's.
  static absl::StatusOr<MetricsServer> Start(MetricsServerOptions options);

  MetricsServer(MetricsServer&&) noexcept;
  MetricsServer& operator=(MetricsServer&&) noexcept;
  ~MetricsServer();

  /// The port that is listened on.
  int port() const;

 private:
  struct Impl;
  explicit MetricsServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pageferry
