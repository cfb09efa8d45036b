#pragma once

#include <string>
#include <vector>

#include "pageferry/agent/v1/agent.pb.h"
#include "pageferry/topology/v1/topology.pb.h"
#include "tools/pageferryctl/json.h"

namespace pageferry::ctl {

/// A room as one agent has it.
struct AgentRoom {
  std::string address;           ///< of the agent's engine socket
  topology::v1::AgentRef agent;  ///< who answered there
  agent::v1::RoomInfo room;
};

/// One line a room.
std::string RoomsText(const std::vector<AgentRoom>& rooms);

/// All that the agents know, one block a room.
std::string RoomDetails(const std::vector<AgentRoom>& rooms);

/// {"rooms": [...]}: RoomInfo, with "agent" and "agent_address" in front.
Json RoomsJson(const std::vector<AgentRoom>& rooms);

}  // namespace pageferry::ctl
