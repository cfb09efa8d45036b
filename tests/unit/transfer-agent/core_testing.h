#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/common/error.h"
#include "services/transfer-agent/agent_core.h"
#include "services/transfer-agent/room.h"

/// What tests of the core share: a small engine, and a list of what a room did, in words.
namespace pageferry::agent {

inline constexpr int64_t kPages = 64;
inline constexpr int64_t kSlots = 8;
inline constexpr int64_t kStateItems = 16;

/// The time at which tests begin.
inline MonotonicTime TestStart() { return MonotonicTime::FromNanoseconds(1'000'000'000'000); }

/// Two layers of K and V with items of 8 bytes, one aux buffer of 4, one state component with two
/// entries of 2: 32 bytes a page, 4 a slot, 4 a state index. All in region 1.
EngineInfo TestEngine(Role role);

AgentRef TestAgent(const std::string& name);

/// A session with the engine of the other role.
PeerInfo TestPeer(Role own_role, const std::string& agent = "peer");

/// "WAITING_FOR_INPUT", "FAILED DEADLINE drained": what a test wants to see of an event.
std::string Brief(const RoomEvent& event);
std::string Brief(const EngineEvent& event);
std::string Brief(const PeerFrame& frame);

/// Writes down what a room does: "event FAILED DEADLINE", "offer 0+2 last", "seal", "break"...
class RecordedActions final : public RoomActions {
 public:
  explicit RecordedActions(CoreProbe& probe) : probe_(probe) {}

  void Tell(EngineEvent event) override { Add(Brief(event)); }
  void Send(PeerId, PeerFrame frame) override { Add(Brief(frame)); }
  absl::StatusOr<transport::SealRef> MakeSeal() override;
  void BreakSeal(const transport::SealRef&) override { Add("break"); }
  int64_t StartMove(int64_t, PeerId, transport::Batch batch) override;
  CoreProbe& probe() override { return probe_; }

  /// What happened since the last call, joined by "; ".
  std::string Take();

  bool seals_left = true;
  int64_t last_ticket = 0;
  std::vector<transport::Batch> batches;

 private:
  void Add(std::string what) { done_.push_back(std::move(what)); }

  CoreProbe& probe_;
  std::vector<std::string> done_;
};

/// The link of a session, as the core makes it.
std::shared_ptr<const PeerLink> TestLink(Role own_role, PeerId id = PeerId(7));
std::shared_ptr<const OwnEngine> TestOwn(Role role);

}  // namespace pageferry::agent
