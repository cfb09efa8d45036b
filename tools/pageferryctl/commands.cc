#include "tools/pageferryctl/commands.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "libs/common/error.h"
#include "tools/pageferryctl/client.h"
#include "tools/pageferryctl/engine_text.h"
#include "tools/pageferryctl/failure.h"
#include "tools/pageferryctl/json.h"
#include "tools/pageferryctl/room_text.h"
#include "tools/pageferryctl/words.h"

namespace pageferry::ctl {
namespace {

namespace agent_pb = agent::v1;
namespace bootstrap_pb = bootstrap::v1;

std::string RoomCount(int64_t count) {
  return absl::StrCat(count, count == 1 ? " room" : " rooms");
}

class Runner {
 public:
  Runner(const Options& options, const Terminal& terminal)
      : options_(options), terminal_(terminal) {}

  /// Takes the certificates; exit code as Run.
  int Prepare() {
    auto tls = Tls::Load(options_.tls);
    if (!tls.ok()) return Fail("", tls.status(), kExitUsage);
    calling_ = {.timeout = options_.timeout, .tls = *std::move(tls)};
    return kExitOk;
  }

  int Run() {
    switch (options_.command) {
      case Command::kEngines:
        return Engines();
      case Command::kRanks:
        return Ranks();
      case Command::kRooms:
        return options_.room.has_value() ? OneRoom() : Rooms();
      case Command::kAbort:
        return Abort();
      case Command::kDrain:
        return Drain();
    }
    return kExitUsage;
  }

 private:
  int Engines() {
    const auto engines = AskBootstrap<bootstrap_pb::ListEnginesResponse>(
        [&](BootstrapCalls& calls) { return calls.ListEngines(options_.name_space); });
    if (!engines.has_value()) return exit_code_;
    Print(options_.json ? Document(ToJson(*engines))
                        : EnginesText(*engines, options_.name_space == "*"));
    return kExitOk;
  }

  int Ranks() {
    const auto engine = AskBootstrap<bootstrap_pb::GetEngineResponse>([&](BootstrapCalls& calls) {
      return calls.GetEngine(options_.name_space, options_.engine);
    });
    if (!engine.has_value()) return exit_code_;
    Print(options_.json ? Document(ToJson(*engine)) : RanksText(*engine));
    return kExitOk;
  }

  int Rooms() {
    std::vector<AgentRoom> found;
    for (const std::string& address : options_.agents) {
      AgentCalls calls(address, calling_);
      const auto agent = calls.GetAgent();
      auto rooms = agent.ok() ? calls.ListRooms(options_.states) : agent.status();
      if (!rooms.ok()) {
        Fail(address, rooms.status());
        continue;
      }
      for (agent_pb::RoomInfo& room : *rooms) {
        if (options_.role != 0 && room.role() != options_.role) continue;
        found.push_back({address, agent->agent(), std::move(room)});
      }
    }
    if (exit_code_ == kExitOk || !found.empty()) {
      Print(options_.json ? Document(RoomsJson(found)) : RoomsText(found));
    }
    return exit_code_;
  }

  int OneRoom() {
    return AtAgentsWithRoom([&](AgentCalls& calls) { return calls.GetRoom(Room()); });
  }

  int Abort() {
    return AtAgentsWithRoom(
        [&](AgentCalls& calls) { return calls.AbortRoom(Room(), options_.reason); });
  }

  /// Asks every agent about the room, and prints those that have it. That some do not have it is an
  /// error only where none has it.
  template <class Ask>
  int AtAgentsWithRoom(const Ask& ask) {
    std::vector<AgentRoom> found;
    std::vector<Failure> absent;
    for (const std::string& address : options_.agents) {
      AgentCalls calls(address, calling_);
      const auto agent = calls.GetAgent();
      auto room = agent.ok() ? ask(calls) : agent.status();
      if (room.ok()) {
        found.push_back({address, agent->agent(), *std::move(room)});
      } else if (ReasonOf(room.status()) == Reason::kRoomNotFound) {
        absent.push_back({address, room.status()});
      } else {
        Fail(address, room.status());
      }
    }
    if (found.empty()) {
      for (const Failure& failure : absent) Fail(failure.address, failure.status);
      return exit_code_;
    }
    if (options_.command == Command::kAbort && !options_.json) Print("Aborted:\n");
    Print(options_.json ? Document(RoomsJson(found)) : RoomDetails(found));
    return exit_code_;
  }

  int Drain() {
    const std::string& address = options_.agents.front();
    AgentCalls calls(address, calling_);
    const auto agent = calls.GetAgent();
    if (!agent.ok()) return Fail(address, agent.status());
    if (const int refused = ConfirmDrain(address, *agent); refused != kExitOk) return refused;
    Json json = {
        {"agent", ToJson(agent->agent())}, {"agent_address", address}, {"waited", options_.wait}};
    std::string text = absl::StrCat("Agent ", Text(agent->agent()));
    if (options_.wait) {
      const auto drained = calls.Drain(options_.drain_timeout, options_.deregister);
      if (!drained.ok()) return Fail(address, drained.status());
      json.update(ToJson(*drained));
      absl::StrAppend(&text, " is drained: ", RoomCount(drained->finished_count()), " ended, ",
                      drained->aborted_count(), " aborted.");
    } else {
      const absl::Status begun = calls.BeginDrain(options_.drain_timeout, options_.deregister);
      if (!begun.ok()) return Fail(address, begun);
      absl::StrAppend(&text, " is draining: rooms that live in ",
                      absl::FormatDuration(options_.drain_timeout), " are aborted.");
    }
    if (options_.deregister) absl::StrAppend(&text, " Its cell is given up at the end.");
    Print(options_.json ? Document(json) : absl::StrCat(text, "\n"));
    return kExitOk;
  }

  int ConfirmDrain(const std::string& address, const agent_pb::GetAgentResponse& agent) {
    if (options_.yes) return kExitOk;
    if (!terminal_.confirm) {
      return Fail(address, absl::InvalidArgumentError("stdin is no terminal to ask at: give --yes"),
                  kExitUsage);
    }
    int64_t rooms = 0;
    for (const char* const kind : {"rooms_prefill", "rooms_decode"}) {
      const auto held = agent.ledger().find(kind);
      if (held != agent.ledger().end()) rooms += held->second;
    }
    const std::string question = absl::StrCat(
        "Draining agent ", Text(agent.agent()), " (", Word(agent.state()), ", engine ",
        agent.engine().engine_id().empty() ? "none" : agent.engine().engine_id(), ", ",
        RoomCount(rooms),
        "):\n  it takes no new rooms from now on, and cannot be told to take them again "
        "but by a restart;\n  live rooms may end within ",
        absl::FormatDuration(options_.drain_timeout), ", then they are aborted",
        options_.deregister ? ";\n  then its cell is given up and the engine is not ready" : "",
        ".\nDrain it? [y/N] ");
    if (terminal_.confirm(question)) return kExitOk;
    return Fail(address, absl::CancelledError("not confirmed; nothing was done"));
  }

  agent_pb::RoomRef Room() const {
    agent_pb::RoomRef room;
    room.set_room_id(options_.room.value_or(0));
    room.set_attempt(options_.attempt);
    return room;
  }

  /// Asks the replicas in turn until one answers.
  template <class Response, class Ask>
  std::optional<Response> AskBootstrap(const Ask& ask) {
    std::vector<Failure> unanswered;
    for (const std::string& address : options_.bootstrap) {
      BootstrapCalls calls(address, calling_);
      absl::StatusOr<Response> response = ask(calls);
      if (response.ok()) return *std::move(response);
      if (ExitCodeOf(response.status()) != kExitUnreachable) {
        Fail(address, response.status());
        return std::nullopt;
      }
      unanswered.push_back({address, response.status()});
    }
    for (const Failure& failure : unanswered) Fail(failure.address, failure.status);
    return std::nullopt;
  }

  int Fail(const std::string& address, const absl::Status& status) {
    return Fail(address, status, ExitCodeOf(status));
  }

  /// The first failure decides the exit code.
  int Fail(const std::string& address, const absl::Status& status, int code) {
    const Failure failure{.address = address, .status = status};
    const absl::string_view command = CommandName(options_.command);
    terminal_.err(options_.json ? FailureJson(command, failure, code)
                                : FailureText(command, failure));
    if (exit_code_ == kExitOk) exit_code_ = code;
    return exit_code_;
  }

  void Print(const std::string& text) { terminal_.out(text); }

  const Options& options_;
  const Terminal& terminal_;
  Calling calling_;
  int exit_code_ = kExitOk;
};

}  // namespace

int Run(const Options& options, const Terminal& terminal) {
  Runner runner(options, terminal);
  const int prepared = runner.Prepare();
  return prepared == kExitOk ? runner.Run() : prepared;
}

}  // namespace pageferry::ctl
