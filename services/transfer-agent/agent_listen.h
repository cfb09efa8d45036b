#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "libs/common/host_port.h"
#include "libs/transport/ucx_transport.h"
#include "services/transfer-agent/agent_options.h"
#include "services/transfer-agent/agent_probe.h"
#include "services/transfer-agent/transport_choice.h"

/// Where an agent listens, as its options say.
namespace pageferry::agent {

/// "auto" and "none" replaced; empty is none.
absl::StatusOr<std::string> SideAddress(const std::string& wish, const HostPort& main, int offset);

/// What peers are told to dial. kInvalidArgument, INVALID_FIELD: a wildcard.
absl::StatusOr<HostPort> Advertised(const std::string& wish, const std::string& bound);

/// The way `tcp`; null where the policy does not allow it. Counts at `probe`, which is borrowed.
absl::StatusOr<std::unique_ptr<transport::UcxTransport>> StartTcp(const AgentOptions& options,
                                                                  const TransportPolicy& policy,
                                                                  AgentProbe& probe);

}  // namespace pageferry::agent
