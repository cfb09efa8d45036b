#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/transfer-agent/agent_core.h"
#include "services/transfer-agent/messages.h"
#include "services/transfer-agent/ports.h"

/// The outside of AgentCore for tests. All are thread-compatible and keep what they are told; none
/// answers by itself: the test does.
namespace pageferry::agent {

class FakeEngine final : public EnginePort {
 public:
  void Send(EngineEvent event) override { events.push_back(std::move(event)); }

  /// All events of one kind, in order.
  template <class T>
  std::vector<T> All() const {
    std::vector<T> all;
    for (const EngineEvent& event : events) {
      if (const T* one = std::get_if<T>(&event)) all.push_back(*one);
    }
    return all;
  }

  std::vector<EngineEvent> events;
};

class FakePeers final : public PeerPort {
 public:
  void Send(PeerId peer, PeerFrame frame) override { frames.emplace_back(peer, std::move(frame)); }
  void Close(PeerId peer, absl::Status) override { closed.push_back(peer); }

  /// All frames of one kind, in order, whatever their session.
  template <class T>
  std::vector<T> All() const {
    std::vector<T> all;
    for (const auto& [peer, frame] : frames) {
      if (const T* one = std::get_if<T>(&frame)) all.push_back(*one);
    }
    return all;
  }

  std::vector<std::pair<PeerId, PeerFrame>> frames;
  std::vector<PeerId> closed;
};

class FakeFinder final : public PeerFinder {
 public:
  struct Search {
    RankQuery query;
    MonotonicTime deadline;
  };
  void Find(int64_t ticket, const RankQuery& query, MonotonicTime deadline) override {
    open.emplace(ticket, Search{query, deadline});
  }
  void Cancel(int64_t ticket) override { open.erase(ticket); }

  std::map<int64_t, Search> open;  // by ticket
};

class FakeSeals final : public SealPort {
 public:
  absl::StatusOr<transport::SealRef> Make() override;
  void Break(const transport::SealRef& seal) override;

  bool IsWhole(const transport::SealRef& seal) const { return whole.contains(seal.value); }

  RegionId region{1};
  int64_t limit = 1'000'000;
  std::set<uint64_t> whole;
  int64_t broken = 0;
  int64_t broken_twice = 0;

 private:
  uint64_t last_ = 0;
};

class FakeMover final : public MovePort {
 public:
  struct Move {
    PeerId peer;
    transport::Batch batch;
  };
  void Start(int64_t ticket, PeerId peer, transport::Batch batch) override {
    running.emplace(ticket, Move{peer, std::move(batch)});
    ++started;
  }

  std::map<int64_t, Move> running;  // by ticket; the test takes out what it answers
  int64_t started = 0;
};

class FakeProbe final : public CoreProbe {
 public:
  void RoomOpened(Role role) override { ++opened[role]; }
  void RoomEnded(Role role, Reason reason, absl::Duration) override { ++ended[{role, reason}]; }
  void RoomDrained(Role role, absl::Duration) override { ++drained[role]; }
  void GrantCompleted(transport::TransportKind, absl::Duration) override { ++completed; }
  void ChunkMoved(transport::TransportKind, int64_t pages, ByteCount, absl::Duration) override {
    pages_moved += pages;
  }
  void FrameRefused(Reason reason) override { ++frames_refused[reason]; }
  void CommandWasRefused(Reason reason) override { ++commands_refused[reason]; }

  std::map<Role, int64_t> opened;
  std::map<std::pair<Role, Reason>, int64_t> ended;
  std::map<Role, int64_t> drained;
  int64_t completed = 0;
  int64_t pages_moved = 0;
  std::map<Reason, int64_t> frames_refused;
  std::map<Reason, int64_t> commands_refused;
};

/// All of them.
struct FakePorts {
  FakeEngine engine;
  FakePeers peers;
  FakeFinder finder;
  FakeSeals seals;
  FakeMover mover;
  FakeProbe probe;

  AgentCore::Ports Get() { return {engine, peers, finder, seals, mover, probe}; }
};

}  // namespace pageferry::agent
