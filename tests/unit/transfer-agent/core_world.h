#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/transfer-agent/agent_core.h"
#include "tests/fakes/fake_ports.h"
#include "tests/unit/transfer-agent/core_testing.h"

/// A small fleet in one thread: two prefill and two decode cores, engines with real bytes, sessions
/// that keep their order but not among one another, movers that copy piece by piece, and a die that
/// decides what happens next. It checks the invariants of design section 7 as it goes.
namespace pageferry::agent {

class World;

/// What an agent and its engine have: pages, slots and state items by number.
enum class ItemType : int8_t { kPage, kSlot, kState };

struct Session {
  size_t prefill = 0, decode = 0;  // hosts
  PeerId at_prefill, at_decode;
  std::deque<PeerFrame> to_prefill, to_decode;
  bool up_at_prefill = true, up_at_decode = true;
  bool cut = false;
};

/// What an engine does for a room: its items, in order of the prompt.
struct Flow {
  RoomKey key;  // prefill: attempt 0 until the grant is known
  size_t host = 0;
  int64_t prefix = 0;
  int64_t total = 0;  // pages of the prompt
  int64_t first = 0;  // position of the first item of `pages`
  std::vector<int64_t> pages, slots, states;
  int64_t sent = 0;  // positions
  bool said_last = false;
  bool ended = false;
  bool drained = false;
  bool success = false;
};

/// "room 5/1".
std::string NameOf(const RoomKey& key);

/// One agent with its engine.
class Host final : public EnginePort, public PeerPort, public PeerFinder, public MovePort {
 public:
  Host(World& world, size_t index, Role role);

  void Send(EngineEvent event) override;
  void Send(PeerId peer, PeerFrame frame) override;
  void Close(PeerId, absl::Status) override {}
  void Find(int64_t ticket, const RankQuery& query, MonotonicTime) override {
    searches.emplace(ticket, query.room);
  }
  void Cancel(int64_t ticket) override { searches.erase(ticket); }
  void Start(int64_t ticket, PeerId peer, transport::Batch batch) override;

  /// Takes `count` free items, or none.
  std::vector<int64_t> Take(ItemType type, int64_t count);
  void GiveBack(const Flow& flow);
  uint8_t* At(ByteCount offset, int64_t item, ByteCount item_size) {
    return memory.data() + offset.value() + item * item_size.value();
  }

  struct Copy {
    PeerId peer;
    transport::Batch batch;
    size_t step = 0, entry = 0, run = 0;
    int64_t item = 0;
  };

  World& world;
  const size_t index;
  const Role role;
  const EngineInfo engine;
  FakeSeals seals;
  FakeProbe probe;
  std::unique_ptr<AgentCore> core;
  std::vector<uint8_t> memory;
  std::map<ItemType, std::set<int64_t>> free;
  std::map<int64_t, RoomId> searches;
  std::map<int64_t, Copy> copies;
  std::map<RoomKey, Flow> flows;
  /// Decode: who may be written to, and how often each buffer's item was.
  std::map<std::pair<ItemType, int64_t>, RoomKey> owner;
  std::map<std::pair<int64_t, int64_t>, int64_t> written;  // (buffer offset, item)
};

class World {
 public:
  explicit World(uint64_t seed);

  /// Lets something happen, chosen by the die.
  void Step();
  /// No more new things; lets all end, by deadlines at last.
  void Quiesce();

  void Violated(const std::string& invariant, const std::string& how) {
    if (violations[invariant].size() < 5) violations[invariant].push_back(how);
  }

  // For hosts.
  void OnEvent(Host& host, const EngineEvent& event);
  void OnFrame(Host& host, PeerId peer, PeerFrame frame);

  std::map<std::string, std::vector<std::string>> violations;  // by invariant
  std::map<std::string, int64_t> counts;                       // of what happened
  std::vector<std::unique_ptr<Host>> hosts;                    // 0, 1 prefill; 2, 3 decode
  MonotonicTime now = TestStart();

 private:
  int64_t Roll(int64_t below) {
    return static_cast<int64_t>(die_() % static_cast<uint64_t>(below));
  }
  absl::Duration Timeout() { return absl::Milliseconds(Roll(8) == 0 ? Roll(300) : 20'000); }
  Host& Prefill(RoomId room) { return *hosts[static_cast<size_t>(room.value() % 2)]; }
  Host& Decode(RoomId room) { return *hosts[static_cast<size_t>(2 + room.value() / 2 % 2)]; }

  void OpenRoom();
  void OpenLate();
  void OpenReceiveFor(RoomId room, int64_t attempt);
  void OpenSendFor(RoomId room);
  void SendSome();
  void EndSomething();
  void Repeat();
  void Forge();
  bool DeliverOne();
  void AnswerSearch();
  bool CopySome();
  void CopyItem(Host& host, Host::Copy& copy);
  void CutSession();
  void TellDown(Session& session, bool prefill);
  void LoseEngine();
  void Pass(absl::Duration time);
  void OnRoomEvent(Host& host, const RoomEvent& event);
  void CheckSuccess(Host& host, const Flow& flow);
  uint8_t Byte(RoomId room, ItemType type, int64_t buffer, int64_t position, int64_t at) const;
  /// Calls back for each byte of the flow's items, with the value that it should have.
  using ByteVisitor =
      absl::FunctionRef<void(uint8_t& byte, uint8_t wanted, const Buffer& where, int64_t item)>;
  void ForEachByte(Host& host, const Flow& flow, ByteVisitor function);
  Session* SessionOf(PeerId peer);

  std::mt19937_64 die_;
  std::vector<std::unique_ptr<Session>> sessions_;
  int64_t last_peer_ = 0;
  int64_t last_room_ = 0;
  int64_t sequence_ = 0;
};

}  // namespace pageferry::agent
