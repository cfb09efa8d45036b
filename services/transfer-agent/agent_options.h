#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/common/backoff.h"
#include "libs/common/flags.h"
#include "libs/common/ids.h"
#include "libs/common/log.h"
#include "libs/common/tls_options.h"
#include "services/transfer-agent/peer_session.h"
#include "services/transfer-agent/transport_choice.h"

namespace pageferry::agent {

/// The configuration of one agent. Value type; the defaults are those of the flags.
struct AgentOptions {
  /// "unix:/path" or "host:port" for the engine and operators; empty: DefaultEngineAddress().
  std::vector<std::string> engine_listen;
  std::string peer_listen = "127.0.0.1:0";
  /// host:port that peers are told; empty: the bound address, which must then be no wildcard. Port
  /// 0 means the bound port.
  std::string advertise;
  /// "auto": the host of `peer_listen` and the next port, any free one where that is 0. "none".
  std::string health_listen = "auto";
  /// As above, with the port after that.
  std::string metrics_listen = "auto";
  std::vector<std::string> bootstrap;  ///< host:port, at least one
  std::string agent_id;                ///< empty: host name and something random
  std::vector<std::string> transports = {"local"};
  std::string require_transport;  ///< empty: none is required
  /// Network interface of the way `tcp`; empty: "lo" where `peer_listen` is on loopback.
  std::string tcp_device;
  bool allow_insecure_data_path = false;
  bool insecure = false;
  TlsOptions tls;  ///< for TCP: servers, and as a client of peers and the bootstrap service
  bool reflection = true;

  int64_t copy_threads = 2;
  int64_t max_rooms = 65'536;
  int64_t max_rooms_of_peer = 32'768;
  int64_t max_pools = 64;
  ByteCount max_message = ByteCount(4 << 20);
  absl::Duration lease_ttl = absl::Seconds(3);
  absl::Duration pool_grace = absl::Seconds(30);
  absl::Duration resolve_timeout = absl::Seconds(10);
  absl::Duration drain_timeout = absl::Seconds(20);
  std::string shm_dir = "/dev/shm";  ///< no flag: clients map by shm_open
  bool prefault = true;
  bool lock_pools = false;

  PeerTimings peer;
  Backoff::Options backoff = {.initial = absl::Milliseconds(100), .max = absl::Seconds(5)};
};

/// What is for the program, not for the agent.
struct AgentProgramOptions {
  std::string port_file;
  std::string log_format = "text";
  std::string log_level = "info";
  LogOptions log;
};

/// What --transports and --require-transport allow.
/// kInvalidArgument: no list of known transports, the required one is not in it, or tcp without
/// leave for an interface that is not loopback; kUnimplemented: this release lacks one.
absl::StatusOr<TransportPolicy> TransportPolicyOf(const AgentOptions& options);

/// The interface of the way `tcp`, see `tcp_device`; empty where it must be named.
std::string TcpDevice(const AgentOptions& options);

/// Adds all flags. The targets must outlive `flags`.
void AddFlags(Flags& flags, AgentOptions& agent, AgentProgramOptions& program);

/// "unix:/run/pageferry/agent.sock" where that folder can be written to, else below
/// $XDG_RUNTIME_DIR, else below /tmp in a folder of this user's.
std::string DefaultEngineAddress();

/// Host name, a dash and eight random hexadecimal digits.
std::string DrawAgentId();

/// Tells whether two processes can map the same shared memory: boot id and device of `shm_dir`.
/// Empty where that cannot be told.
std::string HostId(const std::string& shm_dir);

}  // namespace pageferry::agent
