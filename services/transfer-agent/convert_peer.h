#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pageferry/peer/v1/peer.pb.h"
#include "services/transfer-agent/convert_profile.h"
#include "services/transfer-agent/peer_messages.h"

/// The frames of a session between agents, between protos and own structs. The way in checks every
/// field (validate.h); what is bad becomes a BadFrame. Pure.
namespace pageferry::agent {

PeerInput FromProto(const peer_pb::DecodeFrame& proto);
PeerInput FromProto(const peer_pb::PrefillFrame& proto);

/// kInternal, INTERNAL for content that this direction does not carry: a defect of the caller.
absl::Status ToProto(const PeerOutput& output, peer_pb::DecodeFrame& proto);
absl::Status ToProto(const PeerOutput& output, peer_pb::PrefillFrame& proto);

}  // namespace pageferry::agent
