#include "services/transfer-agent/agent_listen.h"

#include <algorithm>

#include "absl/strings/string_view.h"
#include "libs/common/error.h"
#include "libs/common/log.h"
#include "libs/common/status.h"

namespace pageferry::agent {
namespace {

LogArea log_area("agent");

}  // namespace

absl::StatusOr<std::string> SideAddress(const std::string& wish, const HostPort& main, int offset) {
  if (wish == "none") return std::string();
  if (wish != "auto") return wish;
  if (main.port == 0) return ToString(HostPort{main.host, 0});
  constexpr int kMaxPort = 65'535;
  if (main.port + offset <= kMaxPort) return ToString(HostPort{main.host, main.port + offset});
  return InvalidField("peer-listen", ToString(main), "a port with two more after it, or all given");
}

absl::StatusOr<HostPort> Advertised(const std::string& wish, const std::string& bound) {
  PAGEFERRY_ASSIGN_OR_RETURN(HostPort listens, ParseHostPort(bound));
  if (!wish.empty()) {
    PAGEFERRY_ASSIGN_OR_RETURN(HostPort advertised, ParseHostPort(wish));
    if (IsWildcard(advertised.host)) {
      return InvalidField("advertise", wish, "an address that other hosts can dial");
    }
    if (advertised.port == 0) advertised.port = listens.port;
    return advertised;
  }
  if (IsWildcard(listens.host)) {
    return InvalidField("advertise", "",
                        "the address that other agents dial, where --peer-listen is a wildcard");
  }
  return listens;
}

absl::StatusOr<std::unique_ptr<transport::UcxTransport>> StartTcp(const AgentOptions& options,
                                                                  const TransportPolicy& policy,
                                                                  AgentProbe& probe) {
  if (std::ranges::find(policy.allowed, transport::TransportKind::kTcp) == policy.allowed.end()) {
    return nullptr;
  }
  const std::string device = TcpDevice(options);
  PAGEFERRY_ASSIGN_OR_RETURN(
      auto tcp, transport::UcxTransport::Start(
                    {.worker = {.device = device}, .refused = [&probe](absl::string_view what) {
                       probe.TcpMessageRefused(what);
                     }}));
  Log(LogLevel::kInfo, log_area, "tcp_ready",
      {{"device", device}, {"ucx", transport::UcxVersion()}});
  return tcp;
}

}  // namespace pageferry::agent
