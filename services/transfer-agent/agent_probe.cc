#include "services/transfer-agent/agent_probe.h"

#include <string>
#include <vector>

#include "libs/common/error.h"

namespace pageferry::agent {
namespace {

constexpr const char* kSuccess = "SUCCESS";

absl::string_view RoleName(Role role) { return role == Role::kPrefill ? "prefill" : "decode"; }

absl::string_view StateName(RoomState state) {
  switch (state) {
    case RoomState::kFailed:
      return "failed";
    case RoomState::kBootstrapping:
      return "bootstrapping";
    case RoomState::kWaitingForInput:
      return "waiting_for_input";
    case RoomState::kTransferring:
      return "transferring";
    case RoomState::kSuccess:
      return "success";
  }
  return "failed";
}

std::vector<std::string> Reasons(std::vector<std::string> names) {
  const std::string unknown(ReasonName(static_cast<Reason>(9999)));
  for (int number = 1; number <= 127; ++number) {
    std::string name(ReasonName(static_cast<Reason>(number)));
    if (name != unknown) names.push_back(std::move(name));
  }
  names.push_back(unknown);
  return names;
}

absl::string_view NameOf(Reason reason) {
  return reason == Reason::kUnspecified ? ReasonName(static_cast<Reason>(9999))
                                        : ReasonName(reason);
}

MetricLabel RoleLabel() { return {.name = "role", .values = {"prefill", "decode"}}; }
MetricLabel TransportLabel() {
  return {.name = "transport", .values = {"local", "rdma", "tcp", "grpc"}};
}

}  // namespace

AgentProbe::AgentProbe(MetricRegistry& registry) {
  const std::vector<double> seconds = LatencyBuckets();
  const auto opened = registry.AddCounterFamily({.name = "pageferry_agent_rooms_opened_total",
                                                 .help = "Rooms that were opened.",
                                                 .labels = {RoleLabel()}});
  rooms_opened_[0] = opened.At({"prefill"});
  rooms_opened_[1] = opened.At({"decode"});
  rooms_ended_ = registry.AddCounterFamily(
      {.name = "pageferry_agent_rooms_ended_total",
       .help = "Rooms that ended, by SUCCESS or the reason why they failed.",
       .labels = {RoleLabel(), {.name = "reason", .values = Reasons({kSuccess})}}});
  rooms_ = registry.AddGaugeFamily(
      {.name = "pageferry_agent_rooms",
       .help = "Live rooms.",
       .labels = {
           RoleLabel(),
           {.name = "state", .values = {"bootstrapping", "waiting_for_input", "transferring"}}}});
  room_seconds_ = registry.AddHistogramFamily(
      {.name = "pageferry_agent_room_seconds",
       .help = "Time from the opening of a room to its end.",
       .labels = {RoleLabel(), {.name = "outcome", .values = {"success", "failed"}}}},
      seconds);
  drain_seconds_ =
      registry.AddHistogramFamily({.name = "pageferry_agent_room_drain_seconds",
                                   .help = "Time from the end of a room until its pages were free.",
                                   .labels = {RoleLabel()}},
                                  seconds);
  grant_seconds_ = registry.AddHistogramFamily(
      {.name = "pageferry_agent_grant_seconds",
       .help = "Time from a grant being sent to the success of its room.",
       .labels = {TransportLabel()}},
      seconds);
  chunk_seconds_ = registry.AddHistogramFamily({.name = "pageferry_agent_chunk_seconds",
                                                .help = "Time to move one chunk of pages.",
                                                .labels = {TransportLabel()}},
                                               seconds);
  bytes_ = registry.AddCounterFamily({.name = "pageferry_agent_moved_bytes_total",
                                      .help = "Bytes that were moved into this agent's pages.",
                                      .labels = {TransportLabel()}});
  pages_ = registry.AddCounterFamily({.name = "pageferry_agent_moved_pages_total",
                                      .help = "Pages that were moved into this agent's memory.",
                                      .labels = {TransportLabel()}});
  frames_refused_ =
      registry.AddCounterFamily({.name = "pageferry_agent_frames_refused_total",
                                 .help = "Frames of peers that changed nothing.",
                                 .labels = {{.name = "reason", .values = Reasons({})}}});
  tcp_messages_refused_ = registry.AddCounterFamily(
      {.name = "pageferry_agent_tcp_messages_refused_total",
       .help = "Messages of the way tcp that changed nothing: late, unknown or broken.",
       .labels = {{.name = "message", .values = {"data", "done", "read", "hail", "malformed"}}}});
  commands_refused_ =
      registry.AddCounterFamily({.name = "pageferry_agent_commands_refused_total",
                                 .help = "Commands of the engine that were refused.",
                                 .labels = {{.name = "reason", .values = Reasons({})}}});
  sessions_ =
      registry.AddGaugeFamily({.name = "pageferry_agent_sessions",
                               .help = "Live sessions with other agents.",
                               .labels = {{.name = "side", .values = {"dialled", "accepted"}}}});
  ledger_ = registry.AddGaugeFamily(
      {.name = "pageferry_agent_held_items",
       .help = "What the agent holds, by kind; zero when nothing is going on, but for tombstones.",
       .labels = {{.name = "kind",
                   .values = {"rooms_prefill", "rooms_decode", "grants_held", "offers_open",
                              "moves_running", "chunks_held", "seals", "tickets", "tombstones"}}}});
  lease_live_ = registry.AddGauge("pageferry_agent_lease_live",
                                  "1 while the cell is held at the bootstrap service.");
  engine_session_ = registry.AddGauge("pageferry_agent_engine_session_open",
                                      "1 while the engine has its session open.");
  pools_ = registry.AddGauge("pageferry_agent_pools", "Pools that the agent holds.");
  pool_bytes_ = registry.AddGauge("pageferry_agent_pool_bytes", "Bytes of data in pools.");
}

void AgentProbe::RoomOpened(Role role) {
  rooms_opened_[role == Role::kPrefill ? 0 : 1].Add();
  activity_();
}

void AgentProbe::RoomEnded(Role role, Reason reason, absl::Duration elapsed) {
  const bool success = reason == Reason::kUnspecified;
  rooms_ended_.At({RoleName(role), success ? kSuccess : NameOf(reason)}).Add();
  room_seconds_.At({RoleName(role), success ? "success" : "failed"})
      .Observe(absl::ToDoubleSeconds(elapsed));
  activity_();
}

void AgentProbe::RoomDrained(Role role, absl::Duration since_end) {
  drain_seconds_.At({RoleName(role)}).Observe(absl::ToDoubleSeconds(since_end));
  activity_();
}

void AgentProbe::GrantCompleted(transport::TransportKind kind, absl::Duration since_grant) {
  grant_seconds_.At({transport::TransportName(kind)}).Observe(absl::ToDoubleSeconds(since_grant));
}

void AgentProbe::ChunkMoved(transport::TransportKind kind, int64_t pages, ByteCount bytes,
                            absl::Duration took) {
  const absl::string_view name = transport::TransportName(kind);
  chunk_seconds_.At({name}).Observe(absl::ToDoubleSeconds(took));
  bytes_.At({name}).Add(static_cast<double>(bytes.value()));
  pages_.At({name}).Add(static_cast<double>(pages));
  activity_();
}

void AgentProbe::FrameRefused(Reason reason) { frames_refused_.At({NameOf(reason)}).Add(); }

void AgentProbe::CommandWasRefused(Reason reason) { commands_refused_.At({NameOf(reason)}).Add(); }

void AgentProbe::TcpMessageRefused(absl::string_view what) {
  tcp_messages_refused_.At({std::string(what)}).Add();
}

void AgentProbe::Sessions(int64_t dialled, int64_t accepted) {
  sessions_.At({"dialled"}).Set(static_cast<double>(dialled));
  sessions_.At({"accepted"}).Set(static_cast<double>(accepted));
}

void AgentProbe::LeaseLive(bool live) { lease_live_.Set(live ? 1 : 0); }

void AgentProbe::EngineSession(bool open) { engine_session_.Set(open ? 1 : 0); }

void AgentProbe::Pools(int64_t count, ByteCount bytes) {
  pools_.Set(static_cast<double>(count));
  pool_bytes_.Set(static_cast<double>(bytes.value()));
}

void AgentProbe::Rooms(const std::map<std::pair<Role, RoomState>, int64_t>& rooms) {
  for (const auto& [key, count] : rooms) {
    rooms_.At({RoleName(key.first), StateName(key.second)}).Set(static_cast<double>(count));
  }
}

void AgentProbe::Ledger(const std::map<std::string, int64_t>& ledger) {
  for (const auto& [kind, count] : ledger) ledger_.At({kind}).Set(static_cast<double>(count));
}

}  // namespace pageferry::agent
