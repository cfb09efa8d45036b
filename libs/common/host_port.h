#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pageferry {

/// A host and a port, as in "127.0.0.1:7000", "[::1]:0", "node-3:7000". Value type.
struct HostPort {
  std::string host;  ///< without brackets; never empty
  int32_t port = 0;  ///< 0 to 65535

  friend bool operator==(const HostPort&, const HostPort&) = default;
};

/// Reads `text`. IPv6 addresses stand in brackets; ":7000" and "*:7000" mean every address ("::").
/// kInvalidArgument, INVALID_FIELD: no port, a port out of range, an empty or malformed host.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

/// The inverse, with brackets around a host that holds a colon.
std::string ToString(const HostPort& host_port);

/// True for 0.0.0.0, :: and their longer forms. Does not ask the resolver.
bool IsWildcard(absl::string_view host);

/// True when every address of `host` is a loopback one. Asks the system's resolver for names (which
/// may block for seconds), not for addresses; a name that does not resolve is not loopback.
bool IsLoopback(absl::string_view host);

/// The first address of `host`, in digits; an address stays as it is. Asks the resolver as above.
/// kInvalidArgument, INVALID_FIELD: it does not resolve.
absl::StatusOr<std::string> NumericHost(absl::string_view host);

/// A socket that listens on the first address of `host_port`, not blocking, for the caller to
/// close. Where the host has no IPv6, "::" means 0.0.0.0. Errors as ProbeBind.
absl::StatusOr<int> ListenOn(const HostPort& host_port);

/// OK when a TCP socket can be bound to `host_port` now (it is closed again). To find out why a
/// server did not start, which gRPC does not tell.
/// kUnavailable, IN_USE with "address": somebody listens there.
/// kInvalidArgument, INVALID_FIELD: the name does not resolve, or the address is not of this host.
/// kPermissionDenied, NOT_PERMITTED: a port below 1024.
absl::Status ProbeBind(const HostPort& host_port);

std::ostream& operator<<(std::ostream& out, const HostPort& host_port);

}  // namespace pageferry
