#include "services/bootstrap/server_options.h"

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"

namespace pageferry::bootstrap {
namespace {

constexpr int64_t kMillion = 1 << 20;

LogLevel LevelOf(const std::string& name) {
  if (name == "verbose") return LogLevel::kVerbose;
  if (name == "warning") return LogLevel::kWarning;
  return name == "error" ? LogLevel::kError : LogLevel::kInfo;
}

absl::Status CheckTtls(const ServerOptions& server) {
  if (server.min_lease_ttl <= server.default_lease_ttl &&
      server.default_lease_ttl <= server.max_lease_ttl) {
    return absl::OkStatus();
  }
  return InvalidField("default-lease-ttl", absl::FormatDuration(server.default_lease_ttl),
                      absl::StrCat(absl::FormatDuration(server.min_lease_ttl), " to ",
                                   absl::FormatDuration(server.max_lease_ttl),
                                   ", by --min-lease-ttl and --max-lease-ttl"));
}

}  // namespace

void AddFlags(Flags& flags, ServerOptions& server, ProgramOptions& program) {
  const absl::Duration second = absl::Seconds(1);
  const absl::Duration ten_minutes = absl::Minutes(10);
  flags.Group("Addresses");
  flags.Address("listen", &server.listen, {}, "host:port of the service; port 0 is any free one.");
  flags.Address("health-listen", &server.health_listen, {"auto", "none"},
                "host:port that serves health alone; auto: next to --listen; none.");
  flags.Address("metrics-listen", &server.metrics_listen, {"auto", "none"},
                "host:port of /metrics, /healthz and /readyz; auto: next to that; none.");
  flags.String("port-file", &program.port_file,
               "file to write the ports to, as JSON, when all are listened on.");
  flags.Bool("insecure", &server.insecure,
             "listen in clear text on addresses that other hosts reach.");
  flags.Bool("reflection", &server.reflection, "serve gRPC reflection.");
  flags.Bytes("max-message-bytes", &server.max_message, ByteCount(64 << 10), ByteCount(1 << 30),
              "largest message, both ways.");
  flags.Duration("drain-timeout", &server.drain_timeout, absl::ZeroDuration(), ten_minutes,
                 "how long calls may go on after SIGTERM");
  AddTlsFlags(flags, server.tls);
  flags.Group("Leases");
  flags.Duration("default-lease-ttl", &server.default_lease_ttl, second, ten_minutes,
                 "time to live of a rank's lease where the agent asks for none.");
  flags.Duration("min-lease-ttl", &server.min_lease_ttl, second, ten_minutes,
                 "shorter wishes are raised to it.");
  flags.Duration("max-lease-ttl", &server.max_lease_ttl, second, ten_minutes,
                 "longer wishes are lowered to it.");
  flags.Duration("engine-memory", &server.engine_memory, second, absl::Hours(24 * 7),
                 "how long an engine is known after its last lease ended.");
  flags.Choice("allow-loopback-endpoints", &server.allow_loopback_endpoints,
               {"auto", "true", "false"},
               "accept agents at loopback addresses; auto: if --listen is one.");
  flags.Group("Bounds");
  flags.Int("max-engines", &server.max_engines, 1, kMillion, "engines known.");
  flags.Int("max-ranks", &server.max_ranks, 1, 16 * kMillion, "ranks known, lapsed ones included.");
  flags.Int("max-rooms", &server.max_rooms, 1, 64 * kMillion,
            "rooms placed, and rooms that calls wait for.");
  flags.Int("max-watchers", &server.max_watchers, 1, kMillion, "open watches.");
  flags.Int("max-waiting", &server.max_waiting, 1, kMillion,
            "calls that wait for an engine or for rooms.");
  flags.Duration("watch-stall-timeout", &server.watch_stall_timeout, second, ten_minutes,
                 "a watcher that takes a message no faster is cut off.");
  flags.Group("Log");
  flags.Choice("log-format", &program.log_format, {"text", "json"}, "form of each line.");
  flags.Choice("log-level", &program.log_level, {"verbose", "info", "warning", "error"},
               "the least that is written.");
  flags.List("log-verbose", &program.log.verbose_areas, "areas that log everything, or all.");
  flags.Check([&server, &program] {
    program.log.format = program.log_format == "json" ? LogFormat::kJson : LogFormat::kText;
    program.log.level = LevelOf(program.log_level);
    return CheckTtls(server);
  });
}

}  // namespace pageferry::bootstrap
