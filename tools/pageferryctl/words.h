#pragma once

#include <string>

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "pageferry/agent/v1/agent.pb.h"
#include "pageferry/topology/v1/topology.pb.h"

namespace pageferry::ctl {

/// The enum's name without its prefix, in lower case: "waiting_for_input", "prefill"; the number
/// for a value that this release does not know.
std::string Word(agent::v1::RoomState state);
std::string Word(agent::v1::AgentState state);
std::string Word(topology::v1::Role role);

/// "dp0 cp0 tp3 pp1"
std::string Text(const topology::v1::RankCoordinate& coordinate);
/// "prefill-0 epoch 7"
std::string Text(const topology::v1::AgentRef& agent);
/// "10.0.0.1:7000", "[::1]:7000"; empty where there is none.
std::string Text(const topology::v1::Endpoint& endpoint);
/// For people, at most 7 characters: "350ms", "2.5s", "4m05s", "3h20m", "2d04h".
std::string Text(const google::protobuf::Duration& duration);

}  // namespace pageferry::ctl
