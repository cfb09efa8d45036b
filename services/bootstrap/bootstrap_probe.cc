#include "services/bootstrap/bootstrap_probe.h"

#include <array>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"

namespace pageferry::bootstrap {
namespace {

constexpr std::array<absl::string_view, 9> kRpcNames = {
    "register",      "keep_alive",    "deregister",  "get_engine",  "list_engines",
    "resolve_ranks", "watch_engines", "place_rooms", "lookup_rooms"};

std::string CodeName(absl::StatusCode code) {
  return absl::AsciiStrToLower(absl::StatusCodeToString(code));
}

std::vector<std::string> CodeNames() {
  std::vector<std::string> names;
  for (int code = 0; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
    names.push_back(CodeName(static_cast<absl::StatusCode>(code)));
  }
  return names;
}

std::vector<std::string> UnaryNames() {
  std::vector<std::string> names;
  for (const absl::string_view name : kRpcNames) {
    if (name != "keep_alive" && name != "watch_engines") names.emplace_back(name);
  }
  return names;
}

}  // namespace

absl::string_view RpcName(Rpc rpc) { return kRpcNames[static_cast<size_t>(rpc)]; }

BootstrapProbe::BootstrapProbe(MetricRegistry& registry)
    : registry_(registry),
      rpcs_(registry.AddCounterFamily(
          {"pageferry_bootstrap_rpcs_total",
           "Calls that ended, by method and status code",
           {{"method", {kRpcNames.begin(), kRpcNames.end()}}, {"code", CodeNames()}}})),
      latency_(registry.AddHistogramFamily(
          {"pageferry_bootstrap_rpc_duration_seconds",
           "From the arrival of a unary call to its answer, waiting included",
           {{"method", UnaryNames()}}},
          LatencyBuckets())),
      registrations_(registry.AddCounter("pageferry_bootstrap_registrations_total",
                                         "Claims that made a lease")),
      deregistrations_(registry.AddCounter("pageferry_bootstrap_deregistrations_total",
                                           "Leases given up by their agents")),
      expiries_(
          registry.AddCounter("pageferry_bootstrap_lease_expiries_total", "Leases that lapsed")),
      supersedes_(registry.AddCounter("pageferry_bootstrap_supersedes_total",
                                      "Cells that a younger incarnation took over")),
      renewals_(registry.AddCounter("pageferry_bootstrap_lease_renewals_total",
                                    "Leases renewed by keep-alives")),
      renewals_refused_(registry.AddCounter("pageferry_bootstrap_lease_renewals_refused_total",
                                            "Keep-alives of leases that were lost")),
      rooms_placed_(registry.AddCounter("pageferry_bootstrap_rooms_placed_total",
                                        "Room placements accepted")),
      rooms_moved_(registry.AddCounter("pageferry_bootstrap_rooms_moved_total",
                                       "Rooms placed at another DP rank than before")),
      watch_messages_(registry.AddCounter("pageferry_bootstrap_watch_messages_total",
                                          "Messages sent to watchers")),
      watch_cut_offs_(registry.AddCounter("pageferry_bootstrap_watch_cut_offs_total",
                                          "Watchers cut off because they read too slowly")) {}

void BootstrapProbe::ReadFrom(std::function<Store::Stats()> stats,
                              std::function<size_t()> watchers) {
  const auto gauge = [&](const char* name, const char* help, auto field) {
    registry_.AddGaugeFunction(name, help,
                               [stats, field] { return static_cast<double>(field(stats())); });
  };
  gauge("pageferry_bootstrap_engines_ready", "Engines whose ranks all hold a live lease",
        [](const Store::Stats& s) { return s.engines_ready; });
  gauge("pageferry_bootstrap_engines_not_ready", "Known engines that miss a rank",
        [](const Store::Stats& s) { return s.engines_not_ready; });
  gauge("pageferry_bootstrap_leases", "Live leases, one for each live rank",
        [](const Store::Stats& s) { return s.leases; });
  gauge("pageferry_bootstrap_cells", "Cells remembered, with those that lapsed",
        [](const Store::Stats& s) { return s.cells; });
  gauge("pageferry_bootstrap_rooms", "Rooms placed now",
        [](const Store::Stats& s) { return s.rooms; });
  gauge("pageferry_bootstrap_waiting_calls", "Calls that wait for an engine or for rooms",
        [](const Store::Stats& s) { return s.waiting; });
  gauge("pageferry_bootstrap_table_version", "Version of the port table",
        [](const Store::Stats& s) { return s.version.value(); });
  registry_.AddGaugeFunction("pageferry_bootstrap_watchers", "Open watches",
                             [watchers] { return static_cast<double>(watchers()); });
}

void BootstrapProbe::RpcDone(Rpc rpc, absl::StatusCode code, absl::Duration taken) {
  rpcs_.At({RpcName(rpc), CodeName(code)}).Add();
  if (rpc == Rpc::kKeepAlive || rpc == Rpc::kWatchEngines) return;
  latency_.At({RpcName(rpc)}).Observe(absl::ToDoubleSeconds(taken));
}

}  // namespace pageferry::bootstrap
