#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "libs/transport/transport.h"
#include "services/transfer-agent/peer_messages.h"

/// Which way the pages of a pair of agents go. Pure.
namespace pageferry::agent {

/// What one agent allows.
struct TransportPolicy {
  std::vector<transport::TransportKind> allowed;  ///< in order of preference
  /// No other way than this one; it must be among `allowed`.
  std::optional<transport::TransportKind> required;
};

/// What decides beside the policy, as the accepting (prefill) side knows it.
struct TransportFacts {
  std::string own_host;
  std::string peer_host;
  /// Every region of the accepting side can be mapped by a process on its host.
  bool regions_map_locally = false;
};

/// The first way of `policy` that both sides allow and can use; `address` is left empty.
/// kFailedPrecondition, POLICY with "required", "offered": a required way cannot be used.
/// kFailedPrecondition, NO_TRANSPORT: no way is left. Both have one key for each way with why not.
absl::StatusOr<TransportChoice> ChooseTransport(const TransportPolicy& policy,
                                                const std::vector<TransportOffer>& offers,
                                                const TransportFacts& facts);

/// Reads "local,tcp"; every name once. kInvalidArgument, INVALID_FIELD.
absl::StatusOr<std::vector<transport::TransportKind>> ParseTransportList(
    const std::vector<std::string>& names);

}  // namespace pageferry::agent
