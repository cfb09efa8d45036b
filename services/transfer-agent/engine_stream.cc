#include "services/transfer-agent/engine_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "services/transfer-agent/validate.h"

namespace pageferry::agent {

EngineFrame ParseFrame(const agent_pb::SessionRequest& request) {
  EngineFrame frame;
  if (request.commands().empty()) {
    frame.error = InvalidField("commands", "0", "at least one");
    return frame;
  }
  frame.error = CheckCount("commands", request.commands_size(), kMaxCommands);
  if (!frame.error.ok()) return frame;
  frame.commands.reserve(static_cast<size_t>(request.commands_size()));
  for (int i = 0; i < request.commands_size(); ++i) {
    const agent_pb::EngineCommand& command = request.commands(i);
    switch (command.command_case()) {
      case agent_pb::EngineCommand::COMMAND_NOT_SET:
        frame.error = InvalidField(absl::StrCat("commands[", i, "].command"), "none",
                                   "exactly one that this release knows");
        return frame;
      case agent_pb::EngineCommand::kOpen:
        frame.error = CheckSize("open.client", command.open().client(), 128);
        if (!frame.error.ok()) return frame;
        frame.commands.emplace_back(OpenSession{.engine_id = command.open().engine_id(),
                                                .client = command.open().client()});
        break;
      case agent_pb::EngineCommand::kOpenSend:
      case agent_pb::EngineCommand::kSendChunk:
      case agent_pb::EngineCommand::kOpenReceive:
      case agent_pb::EngineCommand::kAbort:
      case agent_pb::EngineCommand::kCloseRoom:
      case agent_pb::EngineCommand::kRequestRecompute:
      case agent_pb::EngineCommand::kRecomputeResult:
      case agent_pb::EngineCommand::kFailRoom:
        frame.commands.emplace_back(ParseCommand(command));
        break;
    }
  }
  return frame;
}

}  // namespace pageferry::agent
