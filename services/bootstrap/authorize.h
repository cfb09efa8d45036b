#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace grpc {
class CallbackServerContext;
}  // namespace grpc

namespace pageferry::bootstrap {

/// What a caller wants to do, for policy.
enum class Action : uint8_t {
  kClaimCell,  ///< Register, KeepAlive, Deregister
  kReadTable,  ///< GetEngine, ListEngines, ResolveRanks, WatchEngines
  kPlaceRooms,
  kReadRooms,  ///< LookupRooms
};

/// Whether the caller (CallerIdentity, libs/common/grpc_identity.h) may do it, asked first in every
/// rpc. Anybody may, until identities and a policy come (issue "Security"): then kUnauthenticated,
/// UNAUTHENTICATED, or kPermissionDenied, NOT_PERMITTED with "identity" and "action".
inline absl::Status Authorize(const grpc::CallbackServerContext& /*context*/, Action /*action*/) {
  return absl::OkStatus();
}

}  // namespace pageferry::bootstrap
