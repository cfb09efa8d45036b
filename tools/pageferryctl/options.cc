#include "tools/pageferryctl/options.h"

#include <algorithm>
#include <functional>
#include <sstream>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "libs/common/clock.h"
#include "libs/common/flag_values.h"
#include "libs/common/host_port.h"
#include "pageferry/agent/v1/agent.pb.h"
#include "pageferry/topology/v1/topology.pb.h"
#include "tools/pageferryctl/failure.h"
#include "tools/pageferryctl/words.h"

namespace pageferry::ctl {
namespace {

constexpr char kFooter[] = R"(Examples:
  pageferryctl --bootstrap 127.0.0.1:7450 engines
  pageferryctl --bootstrap 127.0.0.1:7450 ranks decode-0
  pageferryctl --agent unix:/run/pageferry/agent.sock rooms --state transferring
  pageferryctl --agent unix:/run/pageferry/agent.sock rooms 4711
  pageferryctl --agent unix:/run/pageferry/agent.sock abort 4711 --reason "stuck, ticket 12"
  pageferryctl --agent unix:/run/pageferry/agent.sock drain --timeout 60s --yes
  pageferryctl -o json engines | jq '.engines[] | select(.ready | not) | .key.engine_id'

Exit codes: 0 done, 1 the call was refused or failed, 2 bad usage, 3 not found, 4 nobody answered
in time. docs/pageferryctl.md has all of it.)";

/// Answers what is wrong with a value; "" for a good one. CLI11's form of a check.
using Check = std::function<std::string(const std::string&)>;

std::string Say(const absl::Status& status) { return std::string(status.message()); }

Check IntegerIn(int64_t min, int64_t max) {
  return [min, max](const std::string& text) -> std::string {
    int64_t value = 0;
    if (absl::SimpleAtoi(text, &value) && value >= min && value <= max) return "";
    return absl::StrCat("\"", text, "\" is not a whole number from ", min, " to ", max);
  };
}

Check DurationIn(absl::Duration min, absl::Duration max) {
  return [min, max](const std::string& text) -> std::string {
    const absl::StatusOr<absl::Duration> value = ParseDurationFlag(text);
    if (value.ok() && *value >= min && *value <= max) return "";
    return absl::StrCat("\"", text, "\" is not a duration from ", absl::FormatDuration(min), " to ",
                        absl::FormatDuration(max), ", such as 500ms or 5s");
  };
}

std::string CheckHostPort(const std::string& text) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(text);
  return parsed.ok() ? "" : Say(parsed.status());
}

/// "unix:" in front of a bare path.
std::string AgentTarget(const std::string& text) {
  return !text.empty() && text.front() == '/' ? absl::StrCat("unix:", text) : text;
}

std::string CheckAgent(const std::string& text) {
  const std::string target = AgentTarget(text);
  constexpr absl::string_view kUnix = "unix:";
  if (absl::StartsWith(target, kUnix)) {
    return target.size() > kUnix.size() ? "" : "\"unix:\" lacks the path of a socket";
  }
  return CheckHostPort(text);
}

template <class Text>
Check OneOf(const Text& text, int count) {
  return [text, count](const std::string& word) -> std::string {
    std::vector<std::string> allowed;
    for (int value = 1; value <= count; ++value) {
      allowed.push_back(text(value));
      if (word == allowed.back()) return "";
    }
    return absl::StrCat("\"", word, "\" is none of ", absl::StrJoin(allowed, ", "));
  };
}

std::string StateWord(int state) { return Word(static_cast<agent::v1::RoomState>(state)); }
std::string RoleWord(int role) { return Word(static_cast<topology::v1::Role>(role)); }

/// The texts as given; turned into Options when all of them are good.
struct Texts {
  std::string output = "table";
  std::string timeout = "5s";
  std::string drain_timeout = "30s";
  std::string room;
  std::string attempt = "0";
  std::vector<std::string> states;
  std::string role;
  bool no_wait = false;
};

class Parser {
 public:
  explicit Parser(const std::string& version) : app_("Shows and steers Pageferry.") {
    app_.name("pageferryctl");
    app_.set_version_flag("--version", version, "What this program and its libraries are");
    app_.set_help_flag("-h,--help", "This text; after a command, that of the command");
    app_.require_subcommand(1);
    app_.fallthrough();
    AddGlobals();
    AddBootstrapCommands();
    AddRoomCommands();
    AddDrain();
    for (CLI::App* sub : app_.get_subcommands({})) {
      sub->footer("The options that `pageferryctl --help` lists may follow a command as well.");
    }
    app_.footer(kFooter);
  }

  Outcome Parse(std::vector<std::string> arguments, bool json) {
    std::ranges::reverse(arguments);  // as CLI11 wants them
    Outcome outcome;
    try {
      app_.parse(std::move(arguments));
    } catch (const CLI::Error& error) {
      if (error.get_exit_code() != 0) return Refuse(error.what(), json);
      std::ostringstream out;
      std::ostringstream err;
      outcome.exit_code = app_.exit(error, out, err);
      outcome.out = out.str();
      return outcome;
    }
    outcome.options = Finish();
    if (const std::string wrong = Missing(outcome.options); !wrong.empty()) {
      return Refuse(wrong, json);
    }
    return outcome;
  }

 private:
  Outcome Refuse(const std::string& what, bool json) const {
    std::string command = "pageferryctl";
    for (const CLI::App* sub : app_.get_subcommands()) command = sub->get_name();
    Outcome outcome;
    outcome.exit_code = kExitUsage;
    if (json) {
      const Failure failure{.address = "", .status = absl::InvalidArgumentError(what)};
      outcome.err = FailureJson(command, failure, kExitUsage);
    } else {
      outcome.err = absl::StrCat("pageferryctl: ", what, "\nTry: pageferryctl --help\n");
    }
    return outcome;
  }

  void AddGlobals() {
    app_.add_option("--bootstrap", options_.bootstrap,
                    "HOST:PORT of the bootstrap service, or of each of its replicas")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CheckHostPort)
        ->envname("PAGEFERRY_BOOTSTRAP");
    app_.add_option("--agent", options_.agents,
                    "Engine socket of an agent, unix:/path or HOST:PORT; for rooms and abort also "
                    "several")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CheckAgent)
        ->envname("PAGEFERRY_AGENT");
    app_.add_option("--namespace", options_.name_space,
                    "Namespace of the engines; for engines, \"*\" is all")
        ->capture_default_str();
    app_.add_option("-o,--output", texts_.output, "table or json")
        ->check(CLI::IsMember({"table", "json"}))
        ->capture_default_str();
    app_.add_option("--timeout", texts_.timeout, "Longest wait for each answer")
        ->check(DurationIn(absl::Milliseconds(1), absl::Hours(1)))
        ->capture_default_str();
    const auto file = [this](const char* flag, std::string& path, const char* help) {
      std::string variable = absl::StrCat("PAGEFERRY_", absl::AsciiStrToUpper(flag));
      absl::StrReplaceAll({{"-", "_"}}, &variable);
      app_.add_option(absl::StrCat("--", flag), path, help)->envname(variable);
    };
    file("tls-ca", options_.tls.ca, "PEM file: authorities of services on TCP");
    file("tls-cert", options_.tls.cert, "PEM file: the certificate to show to them");
    file("tls-key", options_.tls.key, "PEM file: its key");
  }

  void AddBootstrapCommands() {
    Sub(Command::kEngines, "Lists engines: role, shape, readiness, missing ranks");
    Sub(Command::kRanks, "Lists the ranks of an engine: agent, epoch, endpoint, lease")
        ->add_option("ENGINE", options_.engine, "Engine id")
        ->required();
  }

  void AddRoomCommands() {
    CLI::App* const rooms = Sub(Command::kRooms, "Lists the rooms of agents, or tells all of one");
    AddRoom(rooms, "Tell all about this room");
    rooms->add_option("--state", texts_.states, "Only rooms in these states, such as transferring")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(OneOf(StateWord, agent::v1::RoomState_MAX));
    rooms->add_option("--role", texts_.role, "Only rooms where the agent is prefill or decode")
        ->check(OneOf(RoleWord, topology::v1::Role_MAX));

    CLI::App* const abort =
        Sub(Command::kAbort, "Ends a room before success; both engines learn of it");
    AddRoom(abort, "The room to end")->required();
    abort->add_option("--reason", options_.reason, "Told to the other side, at most 256 bytes")
        ->check([](const std::string& text) {
          return text.size() <= 256 ? "" : "longer than 256 bytes";
        });
  }

  void AddDrain() {
    CLI::App* const drain =
        Sub(Command::kDrain, "Empties an agent: no new rooms, live ones may end, then are aborted");
    drain->add_option("--timeout", texts_.drain_timeout, "Longest wait for live rooms to end")
        ->check(DurationIn(absl::ZeroDuration(), absl::Hours(1)))
        ->capture_default_str();
    drain->add_flag("--no-wait", texts_.no_wait, "Return when the drain has begun");
    drain->add_flag("--deregister", options_.deregister,
                    "Give the cell up as well, so that no new grants come");
    drain->add_flag("-y,--yes", options_.yes, "Do not ask");
  }

  CLI::App* Sub(Command command, const std::string& help) {
    return app_.add_subcommand(std::string(CommandName(command)), help)->callback([this, command] {
      options_.command = command;
    });
  }

  CLI::Option* AddRoom(CLI::App* sub, const std::string& help) {
    sub->add_option("--attempt", texts_.attempt, "Attempt of the room; 0 is the newest or all")
        ->check(IntegerIn(0, INT32_MAX))
        ->capture_default_str();
    return sub->add_option("ROOM_ID", texts_.room, help)->check(IntegerIn(0, INT64_MAX));
  }

  /// Everything was checked when CLI11 read it, so no conversion fails here.
  Options Finish() {
    Options options = options_;
    for (std::string& agent : options.agents) agent = AgentTarget(agent);
    options.json = texts_.output == "json";
    options.timeout = ParseDurationFlag(texts_.timeout).value_or(options.timeout);
    options.drain_timeout = ParseDurationFlag(texts_.drain_timeout).value_or(options.drain_timeout);
    int64_t room = 0;
    if (absl::SimpleAtoi(texts_.room, &room)) options.room = room;
    static_cast<void>(absl::SimpleAtoi(texts_.attempt, &options.attempt));
    for (int state = 1; state <= agent::v1::RoomState_MAX; ++state) {
      if (std::ranges::find(texts_.states, StateWord(state)) != texts_.states.end()) {
        options.states.push_back(state);
      }
    }
    for (int role = 1; role <= topology::v1::Role_MAX; ++role) {
      if (texts_.role == RoleWord(role)) options.role = role;
    }
    options.wait = !texts_.no_wait;
    return options;
  }

  /// What the command needs beside what CLI11 can see; "" where nothing is amiss.
  std::string Missing(const Options& options) const {
    if (const absl::Status tls = CheckTls(options.tls, RealClock::Get().WallNow()); !tls.ok())
      return Say(tls);
    const absl::string_view command = CommandName(options.command);
    if (options.command == Command::kEngines || options.command == Command::kRanks) {
      if (!options.bootstrap.empty()) return "";
      return absl::StrCat(command, " needs --bootstrap HOST:PORT or PAGEFERRY_BOOTSTRAP");
    }
    if (options.agents.empty()) {
      return absl::StrCat(command, " needs --agent ADDRESS or PAGEFERRY_AGENT");
    }
    if (options.command == Command::kDrain && options.agents.size() > 1) {
      return "drain takes one --agent at a time";
    }
    if (options.command == Command::kRooms && !options.room && options.attempt != 0) {
      return "--attempt needs a ROOM_ID";
    }
    if (options.room && (!options.states.empty() || options.role != 0)) {
      return "--state and --role go without a ROOM_ID";
    }
    return "";
  }

  CLI::App app_;
  Options options_;
  Texts texts_;
};

/// Whether errors should be JSON, also where the command line as a whole is bad.
bool WantsJson(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "-ojson" || argument == "-o=json" || argument == "--output=json") return true;
    const bool next = i + 1 < arguments.size() && arguments[i + 1] == "json";
    if (next && (argument == "-o" || argument == "--output")) return true;
  }
  return false;
}

}  // namespace

absl::string_view CommandName(Command command) {
  switch (command) {
    case Command::kEngines:
      return "engines";
    case Command::kRanks:
      return "ranks";
    case Command::kRooms:
      return "rooms";
    case Command::kAbort:
      return "abort";
    case Command::kDrain:
      return "drain";
  }
  return "";
}

Outcome ParseOptions(const std::vector<std::string>& arguments, const std::string& version) {
  return Parser(version).Parse(arguments, WantsJson(arguments));
}

}  // namespace pageferry::ctl
