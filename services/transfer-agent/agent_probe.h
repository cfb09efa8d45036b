#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "libs/common/metrics.h"
#include "services/transfer-agent/agent_core.h"

namespace pageferry::agent {

/// The metrics of the agent: pageferry_agent_*. Labels are closed sets, never ids.
///
/// Thread-safe; the methods are cheap. Borrows the registry.
class AgentProbe final : public CoreProbe {
 public:
  explicit AgentProbe(MetricRegistry& registry);

  /// Told of activity of rooms, so that gauges can be set soon. Before anything else happens.
  void SetActivity(std::function<void()> activity) { activity_ = std::move(activity); }

  // CoreProbe
  void RoomOpened(Role role) override;
  void RoomEnded(Role role, Reason reason, absl::Duration elapsed) override;
  void RoomDrained(Role role, absl::Duration since_end) override;
  void GrantCompleted(transport::TransportKind kind, absl::Duration since_grant) override;
  void ChunkMoved(transport::TransportKind kind, int64_t pages, ByteCount bytes,
                  absl::Duration took) override;
  void FrameRefused(Reason reason) override;
  void CommandWasRefused(Reason reason) override;

  /// A message of the way tcp that changed nothing: "data", "done", "read", "hail", "malformed".
  void TcpMessageRefused(absl::string_view what);
  void Sessions(int64_t dialled, int64_t accepted);
  void LeaseLive(bool live);
  void EngineSession(bool open);
  void Pools(int64_t count, ByteCount bytes);
  void Rooms(const std::map<std::pair<Role, RoomState>, int64_t>& rooms);
  void Ledger(const std::map<std::string, int64_t>& ledger);

 private:
  std::function<void()> activity_ = [] {};
  Counter rooms_opened_[2];
  MetricFamily<Counter> rooms_ended_;
  MetricFamily<Gauge> rooms_;
  MetricFamily<Histogram> room_seconds_;
  MetricFamily<Histogram> drain_seconds_;
  MetricFamily<Histogram> grant_seconds_;
  MetricFamily<Histogram> chunk_seconds_;
  MetricFamily<Counter> bytes_;
  MetricFamily<Counter> pages_;
  MetricFamily<Counter> frames_refused_;
  MetricFamily<Counter> commands_refused_;
  MetricFamily<Counter> tcp_messages_refused_;
  MetricFamily<Gauge> sessions_;
  MetricFamily<Gauge> ledger_;
  Gauge lease_live_;
  Gauge engine_session_;
  Gauge pools_;
  Gauge pool_bytes_;
};

}  // namespace pageferry::agent
