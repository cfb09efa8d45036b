#pragma once

#include <string>

#include "absl/status/status.h"

namespace pageferry::agent {

/// Who calls. Without mTLS there is no identity.
struct Caller {
  std::string identity;  ///< CallerIdentity; empty in clear text
  std::string address;   ///< gRPC's peer string
};

/// What a caller wants.
enum class Action { kServeEngine, kOperate, kPeer };

/// Asked at the edge of every rpc, before anything else. kPermissionDenied, NOT_PERMITTED.
/// Without a policy, which comes with the issue "Security", everybody who reaches the listener may
/// do all.
inline absl::Status Authorize(const Caller& caller, Action action) {
  static_cast<void>(caller);
  static_cast<void>(action);
  return absl::OkStatus();
}

}  // namespace pageferry::agent
