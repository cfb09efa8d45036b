#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "libs/common/tls_options.h"

namespace pageferry::ctl {

/// What to do.
enum class Command { kEngines, kRanks, kRooms, kAbort, kDrain };

/// The command line, checked.
struct Options {
  Command command = Command::kEngines;
  std::vector<std::string> bootstrap;  ///< host:port of the replicas, in the order they are tried
  std::vector<std::string> agents;     ///< gRPC targets, such as "unix:/run/pageferry/agent.sock"
  std::string name_space = "default";
  bool json = false;
  absl::Duration timeout = absl::Seconds(5);  ///< of each call
  TlsOptions tls;                             ///< for TCP; its files have been read once

  std::string engine;           ///< ranks
  std::optional<int64_t> room;  ///< rooms, abort
  int32_t attempt = 0;          ///< rooms, abort; 0 as in the proto
  std::vector<int> states;      ///< rooms: numbers of RoomState; empty is all
  int role = 0;                 ///< rooms: number of Role; 0 is both
  std::string reason;           ///< abort
  absl::Duration drain_timeout = absl::Seconds(30);
  bool deregister = false;  ///< drain
  bool wait = true;         ///< drain
  bool yes = false;         ///< drain
};

/// What main should do after ParseOptions.
struct Outcome {
  std::optional<int> exit_code;  ///< not set: go on
  std::string out;               ///< for stdout: help or version
  std::string err;               ///< for stderr: what is wrong with the command line
  Options options;
};

/// Reads the arguments, without the program's name; falls back to PAGEFERRY_BOOTSTRAP and
/// PAGEFERRY_AGENT of the environment. `version` is the whole text for --version. Exit code 0 for
/// help and version, 2 for anything wrong.
Outcome ParseOptions(const std::vector<std::string>& arguments, const std::string& version);

/// The command's word, such as "rooms".
absl::string_view CommandName(Command command);

}  // namespace pageferry::ctl
