#include "services/transfer-agent/agent_options.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/host_port.h"
#include "libs/common/status.h"
#include "libs/transport/transport.h"

namespace pageferry::agent {
namespace {

constexpr char kLoopbackDevice[] = "lo";

LogLevel LevelOf(const std::string& name) {
  if (name == "verbose") return LogLevel::kVerbose;
  if (name == "warning") return LogLevel::kWarning;
  return name == "error" ? LogLevel::kError : LogLevel::kInfo;
}

absl::Status CheckRelations(const AgentOptions& agent) {
  if (agent.bootstrap.empty()) return InvalidField("bootstrap", "", "at least one host:port");
  for (const std::string& address : agent.bootstrap) {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
    if (!parsed.ok() || parsed->port == 0 || IsWildcard(parsed->host)) {
      return InvalidField("bootstrap", address, "host:port of another process");
    }
  }
  if (agent.peer.busy_silence <= agent.peer.busy_heartbeat ||
      agent.peer.idle_silence <= agent.peer.idle_heartbeat) {
    return InvalidField("peer-silence", absl::FormatDuration(agent.peer.busy_silence),
                        "longer than --peer-heartbeat");
  }
  return absl::OkStatus();
}

/// Whoever reaches the port of a UCX worker can write its process's memory: docs/operating.md.
absl::Status CheckTcp(const AgentOptions& options) {
  const std::string device = TcpDevice(options);
  if (device.empty()) {
    return InvalidField(
        "tcp-device", "",
        "a network interface, for --transports tcp with a --peer-listen that is not "
        "on loopback");
  }
  if (device == kLoopbackDevice || options.allow_insecure_data_path) return absl::OkStatus();
  return InvalidField("tcp-device", device,
                      "lo, or with --allow-insecure-data-path an interface of a network that is "
                      "trusted");
}

void AddLimits(Flags& flags, AgentOptions& agent) {
  const absl::Duration second = absl::Seconds(1);
  const absl::Duration ten_minutes = absl::Minutes(10);
  flags.Group("Times");
  flags.Duration("lease-ttl", &agent.lease_ttl, second, ten_minutes,
                 "time to live of the cell's lease; renewed three times as often");
  flags.Duration("pool-grace", &agent.pool_grace, absl::ZeroDuration(), absl::Hours(24),
                 "how long pools outlive their engine's session");
  flags.Duration(
      "resolve-timeout", &agent.resolve_timeout, absl::ZeroDuration(), ten_minutes,
      "how long a room waits for a prefill engine once that is known to be away or not ready");
  flags.Duration("drain-timeout", &agent.drain_timeout, absl::ZeroDuration(), absl::Hours(1),
                 "how long rooms may go on after SIGTERM");
  flags.Duration("peer-heartbeat", &agent.peer.busy_heartbeat, absl::Milliseconds(10), ten_minutes,
                 "between signs of life of a session that holds rooms");
  flags.Duration("peer-silence", &agent.peer.busy_silence, absl::Milliseconds(20), ten_minutes,
                 "without one for so long, such a session's peer is dead");
  flags.Group("Bounds");
  flags.Int("max-rooms", &agent.max_rooms, 1, 1 << 20, "live rooms, of both roles");
  flags.Int("max-rooms-of-peer", &agent.max_rooms_of_peer, 1, 1 << 20,
            "of them, live rooms that one decode agent may have granted here");
  flags.Int("max-pools", &agent.max_pools, 1, 4096, "pools");
  flags.Int("copy-threads", &agent.copy_threads, 1, 256, "threads that copy pages (local)");
  flags.Bytes("max-message-bytes", &agent.max_message, ByteCount(64 << 10), ByteCount(1 << 30),
              "largest message, both ways");
  flags.Bool("prefault", &agent.prefault, "touch all memory of a pool when it is made");
  flags.Bool("lock-pools", &agent.lock_pools,
             "keep pools in RAM (mlock); what RLIMIT_MEMLOCK does not allow is refused");
}

}  // namespace

absl::StatusOr<TransportPolicy> TransportPolicyOf(const AgentOptions& options) {
  TransportPolicy policy;
  PAGEFERRY_ASSIGN_OR_RETURN(policy.allowed, ParseTransportList(options.transports));
  for (const transport::TransportKind kind : policy.allowed) {
    if (kind != transport::TransportKind::kLocal && kind != transport::TransportKind::kTcp) {
      return MakeError(
          absl::StatusCode::kUnimplemented, Reason::kUnsupported,
          absl::StrCat("this release lacks the transport ", transport::TransportName(kind)),
          {{"feature", std::string(transport::TransportName(kind))}});
    }
  }
  if (!options.require_transport.empty()) {
    policy.required = transport::ParseTransportName(options.require_transport);
    if (!policy.required.has_value() ||
        std::ranges::find(policy.allowed, *policy.required) == policy.allowed.end()) {
      return InvalidField("require-transport", options.require_transport, "one of --transports");
    }
  }
  if (std::ranges::find(policy.allowed, transport::TransportKind::kTcp) != policy.allowed.end()) {
    PAGEFERRY_RETURN_IF_ERROR(CheckTcp(options));
  }
  return policy;
}

std::string TcpDevice(const AgentOptions& options) {
  if (!options.tcp_device.empty()) return options.tcp_device;
  const absl::StatusOr<HostPort> listen = ParseHostPort(options.peer_listen);
  return listen.ok() && IsLoopback(listen->host) ? kLoopbackDevice : "";
}

void AddFlags(Flags& flags, AgentOptions& agent, AgentProgramOptions& program) {
  flags.Group("Addresses");
  flags.List("engine-listen", &agent.engine_listen,
             "unix:/path or host:port for the engine and operators; default: "
             "unix:/run/pageferry/agent.sock, or the user's runtime folder");
  flags.Address("peer-listen", &agent.peer_listen, {}, "host:port for other agents; port 0 is any");
  flags.String("advertise", &agent.advertise,
               "host:port that other agents dial; default: what is listened on");
  flags.Address("health-listen", &agent.health_listen, {"auto", "none"},
                "host:port that serves health alone; auto: next to --peer-listen; none");
  flags.Address("metrics-listen", &agent.metrics_listen, {"auto", "none"},
                "host:port of /metrics, /healthz and /readyz; auto: next to that; none");
  flags.List("bootstrap", &agent.bootstrap, "host:port of the bootstrap service, one or several");
  flags.String("port-file", &program.port_file,
               "file to write the addresses to, as JSON, when all are listened on");
  flags.Bool("insecure", &agent.insecure,
             "listen in clear text on addresses that other hosts reach");
  flags.Bool("reflection", &agent.reflection, "serve gRPC reflection");
  AddTlsFlags(flags, agent.tls);
  flags.Group("Agent");
  flags.String("agent-id", &agent.agent_id,
               "name of this agent; after a crash, one of the same name adopts its pools; default: "
               "the host's name and a random part");
  flags.List("transports", &agent.transports, "ways that pages may go, best first: local, tcp");
  flags.String("require-transport", &agent.require_transport, "refuse every other way");
  flags.String(
      "tcp-device", &agent.tcp_device,
      "network interface of the way tcp, such as eth0; default: lo, where --peer-listen is "
      "on loopback");
  flags.Bool("allow-insecure-data-path", &agent.allow_insecure_data_path,
             "let pages go in clear text, by tcp, over a network where everybody is trusted");
  AddLimits(flags, agent);
  flags.Group("Log");
  flags.Choice("log-format", &program.log_format, {"text", "json"}, "form of each line");
  flags.Choice("log-level", &program.log_level, {"verbose", "info", "warning", "error"},
               "the least that is written");
  flags.List("log-verbose", &program.log.verbose_areas, "areas that log everything, or all");
  flags.Check([&agent, &program] {
    program.log.format = program.log_format == "json" ? LogFormat::kJson : LogFormat::kText;
    program.log.level = LevelOf(program.log_level);
    return CheckRelations(agent);
  });
  flags.Check([&agent] { return TransportPolicyOf(agent).status(); });
}

std::string DefaultEngineAddress() {
  constexpr const char* kSystem = "/run/pageferry";
  if (access(kSystem, W_OK | X_OK) == 0) return absl::StrCat("unix:", kSystem, "/agent.sock");
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");  // NOLINT: before any thread
  if (runtime != nullptr && access(runtime, W_OK | X_OK) == 0) {
    return absl::StrCat("unix:", runtime, "/pageferry-agent.sock");
  }
  const std::string folder = absl::StrCat("/tmp/pageferry-", geteuid());
  mkdir(folder.c_str(), 0700);
  return absl::StrCat("unix:", folder, "/agent.sock");
}

std::string DrawAgentId() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string id;
  for (const char* c = name.data(); *c != '\0' && id.size() < 100; ++c) {
    const bool good =
        absl::ascii_isalnum(static_cast<unsigned char>(*c)) || *c == '.' || *c == '_' || *c == '-';
    id += good ? *c : '-';
  }
  return absl::StrCat(id.empty() ? "agent" : id, "-",
                      absl::Hex(RandomSeed() & 0xffff'ffff, absl::kZeroPad8));
}

std::string HostId(const std::string& shm_dir) {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat info{};
  if (boot.empty() || stat(shm_dir.c_str(), &info) != 0) return "";
  return absl::StrCat(boot, "/", info.st_dev, ":", info.st_ino);
}

}  // namespace pageferry::agent
