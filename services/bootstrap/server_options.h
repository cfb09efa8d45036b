#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "libs/common/clock.h"
#include "libs/common/flags.h"
#include "libs/common/ids.h"
#include "libs/common/log.h"
#include "libs/common/scheduler.h"
#include "libs/common/tls_options.h"

namespace pageferry::bootstrap {

/// The configuration of one server. Value type; the defaults are those of the flags.
struct ServerOptions {
  std::string listen = "127.0.0.1:7450";
  /// "auto": the host of `listen` and the next port, any free one where that is 0. "none": none.
  std::string health_listen = "auto";
  /// As above, with the port after that.
  std::string metrics_listen = "auto";
  bool insecure = false;
  TlsOptions tls;
  bool reflection = true;
  ByteCount max_message = ByteCount(4 << 20);

  absl::Duration default_lease_ttl = absl::Seconds(3);
  absl::Duration min_lease_ttl = absl::Seconds(1);
  absl::Duration max_lease_ttl = absl::Minutes(10);
  absl::Duration engine_memory = absl::Minutes(10);
  absl::Duration watch_stall_timeout = absl::Seconds(30);
  absl::Duration drain_timeout = absl::Seconds(5);
  /// "auto": when `listen` is a loopback address itself. "true", "false".
  std::string allow_loopback_endpoints = "auto";

  int64_t max_engines = 65'536;
  int64_t max_ranks = 1'048'576;
  int64_t max_rooms = 1'048'576;
  int64_t max_watchers = 16'384;
  int64_t max_waiting = 65'536;

  /// For tests: time, and who runs timers; both or none. Borrowed.
  const Clock* clock = nullptr;
  Scheduler* scheduler = nullptr;
};

/// What is for the program, not for the server.
struct ProgramOptions {
  std::string port_file;
  std::string log_format = "text";
  std::string log_level = "info";
  LogOptions log;
};

/// Adds all flags. The targets must outlive `flags`.
void AddFlags(Flags& flags, ServerOptions& server, ProgramOptions& program);

}  // namespace pageferry::bootstrap
