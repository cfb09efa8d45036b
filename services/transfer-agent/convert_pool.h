#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/transport/huge_pages.h"
#include "pageferry/agent/v1/agent.pb.h"
#include "services/transfer-agent/convert_profile.h"
#include "services/transfer-agent/pool_store.h"

namespace pageferry::agent {

/// kInvalidArgument: INVALID_FIELD, UNKNOWN_ENUM. kUnimplemented, UNSUPPORTED: memory of a device.
absl::Status CheckPool(const agent_pb::CreatePoolRequest& request);

/// The wish for huge pages of a request that was checked.
transport::HugePages HugePagesOf(const agent_pb::CreatePoolRequest& request);

/// Errors as CheckPool; kInvalidArgument, TOO_LARGE: a handle.
absl::StatusOr<PoolImport> FromProto(const agent_pb::ImportPoolRequest& request);

void ToProto(const PoolView& view, agent_pb::Pool& proto);

}  // namespace pageferry::agent
