#pragma once

#include <memory>

#include "libs/common/health.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace pageferry {

/// The standard `grpc.health.v1.Health` service, with our own linked descriptor, so that reflection
/// can describe it. Check: NOT_FOUND for an unknown name. Watch: SERVICE_UNKNOWN first for such a
/// name; each change once (intermediate states may be left out for a slow reader); the stream ends
/// with UNAVAILABLE when the registry ends. Borrows `health`, which must outlive the server.
std::unique_ptr<grpc::Service> MakeHealthService(HealthRegistry& health);

}  // namespace pageferry
