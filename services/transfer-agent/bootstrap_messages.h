#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "pageferry/bootstrap/v1/bootstrap.pb.h"
#include "services/transfer-agent/bootstrap_client.h"

/// What the bootstrap service is asked and answers, between protos and own structs. Answers are
/// checked as strictly as what peers send. Pure.
namespace pageferry::agent {

namespace bootstrap_pb = ::pageferry::bootstrap::v1;

bootstrap_pb::RegisterRequest ToProto(const Registration& registration);
void ToProto(const NamespaceName& name_space, const EngineId& engine,
             bootstrap_pb::EngineKey& proto);

/// kInternal, INTERNAL for answers that make no sense.
absl::StatusOr<Claim> FromProto(const bootstrap_pb::RegisterResponse& proto);
std::vector<Renewal> FromProto(const bootstrap_pb::KeepAliveResponse& proto);
/// Engines that make no sense are left out.
TableEvent FromProto(const bootstrap_pb::WatchEnginesResponse& proto);

}  // namespace pageferry::agent
