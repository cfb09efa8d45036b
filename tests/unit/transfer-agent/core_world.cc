#include "tests/unit/transfer-agent/core_world.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"

namespace pageferry::agent {

std::string NameOf(const RoomKey& key) {
  return absl::StrCat("room ", key.id.value(), "/", key.attempt.value());
}

Host::Host(World& w, size_t i, Role r) : world(w), index(i), role(r), engine(TestEngine(r)) {
  core = std::make_unique<AgentCore>(CoreLimits{},
                                     AgentCore::Ports{*this, *this, *this, seals, *this, probe});
  core->SetEngine(engine, TestAgent(absl::StrCat("host", i)));
  memory.resize(32 * kPages + 4 * kSlots + 4 * kStateItems, 0xee);
  for (int64_t n = 0; n < kPages; ++n) free[ItemType::kPage].insert(n);
  for (int64_t n = 0; n < kSlots; ++n) free[ItemType::kSlot].insert(n);
  for (int64_t n = 0; n < kStateItems; ++n) free[ItemType::kState].insert(n);
}

void Host::Send(EngineEvent event) { world.OnEvent(*this, event); }
void Host::Send(PeerId peer, PeerFrame frame) { world.OnFrame(*this, peer, std::move(frame)); }
void Host::Start(int64_t ticket, PeerId peer, transport::Batch batch) {
  copies.emplace(ticket, Copy{.peer = peer, .batch = std::move(batch)});
}

std::vector<int64_t> Host::Take(ItemType type, int64_t count) {
  std::set<int64_t>& items = free[type];
  std::vector<int64_t> taken;
  if (static_cast<int64_t>(items.size()) < count) return taken;
  // From both ends in turn, so that runs are short.
  for (int64_t n = 0; n < count; ++n) {
    const auto item = n % 3 == 2 ? std::prev(items.end()) : items.begin();
    taken.push_back(*item);
    items.erase(item);
  }
  return taken;
}

void Host::GiveBack(const Flow& flow) {
  free[ItemType::kPage].insert(flow.pages.begin(), flow.pages.end());
  free[ItemType::kSlot].insert(flow.slots.begin(), flow.slots.end());
  free[ItemType::kState].insert(flow.states.begin(), flow.states.end());
}

World::World(uint64_t seed) : die_(seed) {
  for (size_t i = 0; i < 4; ++i) {
    hosts.push_back(std::make_unique<Host>(*this, i, i < 2 ? Role::kPrefill : Role::kDecode));
  }
}

uint8_t World::Byte(RoomId room, ItemType type, int64_t buffer, int64_t position,
                    int64_t at) const {
  const auto mix = static_cast<uint64_t>(room.value() * 1'000'003 + buffer * 10'007 +
                                         position * 101 + at * 7 + static_cast<int64_t>(type));
  return static_cast<uint8_t>(mix * 0x9e37'79b9'7f4a'7c15 >> 56);
}

void World::ForEachByte(Host& host, const Flow& flow, ByteVisitor function) {
  const KvProfile& profile = host.engine.profile;
  const auto each = [&](ItemType type, int64_t buffer, const Buffer& where, int64_t item,
                        int64_t position) {
    uint8_t* bytes = host.At(where.offset, item, where.item_size);
    for (int64_t at = 0; at < where.item_size.value(); ++at) {
      function(bytes[at], Byte(flow.key.id, type, buffer, position, at), where, item);
    }
  };
  for (const Entry& entry : profile.entries) {
    for (size_t n = 0; n < flow.pages.size(); ++n) {
      each(ItemType::kPage, int64_t{entry.layer} * 8 + static_cast<int64_t>(entry.kind),
           entry.pages, flow.pages[n], flow.first + static_cast<int64_t>(n));
    }
  }
  for (const int64_t slot : flow.slots) each(ItemType::kSlot, 0, profile.aux[0].slots, slot, 0);
  for (const StateEntry& entry : profile.states[0].entries) {
    for (size_t n = 0; n < flow.states.size(); ++n) {
      each(ItemType::kState, entry.layer, entry.items, flow.states[n], static_cast<int64_t>(n));
    }
  }
}

Session* World::SessionOf(PeerId peer) {
  for (const auto& session : sessions_) {
    if (session->at_prefill == peer || session->at_decode == peer) return session.get();
  }
  return nullptr;
}

// --- what the cores say ---

void World::OnFrame(Host& host, PeerId peer, PeerFrame frame) {
  Session* session = SessionOf(peer);
  if (session == nullptr || session->cut) return;
  ++counts["frames"];
  (host.role == Role::kPrefill ? session->to_decode : session->to_prefill)
      .push_back(std::move(frame));
}

void World::OnEvent(Host& host, const EngineEvent& event) {
  if (const auto* room = std::get_if<RoomEvent>(&event)) OnRoomEvent(host, *room);
  if (std::get_if<CommandRefused>(&event) != nullptr) ++counts["commands refused"];
}

void World::OnRoomEvent(Host& host, const RoomEvent& event) {
  auto found = host.flows.find(event.room);
  if (found == host.flows.end() && host.role == Role::kPrefill) {
    // The send took the attempt of its grant.
    const auto unbound = host.flows.find(RoomKey{event.room.id, Attempt(0)});
    if (unbound != host.flows.end()) {
      Flow flow = std::move(unbound->second);
      host.flows.erase(unbound);
      flow.key = event.room;
      found = host.flows.emplace(event.room, std::move(flow)).first;
    }
  }
  if (found == host.flows.end()) {
    ++counts["events of rooms never opened"];
    return;
  }
  Flow& flow = found->second;
  const bool second = flow.ended && event.drained && event.state == RoomState::kFailed;
  if (flow.drained || (flow.ended && !second)) {
    Violated("I3", absl::StrCat(NameOf(event.room), " said ", Brief(event), " after its end"));
    return;
  }
  if (!IsTerminal(event.state)) return;
  if (event.state == RoomState::kSuccess && !event.drained) {
    Violated("I1", absl::StrCat(NameOf(event.room), " succeeded undrained"));
  }
  if (event.state == RoomState::kFailed && event.error.ok()) {
    Violated("I4", absl::StrCat(NameOf(event.room), " failed without a reason"));
  }
  if (!flow.ended) {
    ++counts[absl::StrCat(host.role == Role::kPrefill ? "prefill " : "decode ", Brief(event))];
  }
  flow.ended = true;
  flow.success = event.state == RoomState::kSuccess;
  if (flow.success) CheckSuccess(host, flow);
  if (!event.drained) return;
  flow.drained = true;
  // The engine reuses the pages at once.
  ForEachByte(host, flow, [&](uint8_t& byte, uint8_t, const Buffer&, int64_t) { byte = 0xee; });
  for (const int64_t page : flow.pages) host.owner.erase({ItemType::kPage, page});
  for (const int64_t slot : flow.slots) host.owner.erase({ItemType::kSlot, slot});
  for (const int64_t state : flow.states) host.owner.erase({ItemType::kState, state});
  host.GiveBack(flow);
}

void World::CheckSuccess(Host& host, const Flow& flow) {
  if (host.role == Role::kPrefill) {
    const auto there = Decode(flow.key.id).flows.find(flow.key);
    if (there == Decode(flow.key.id).flows.end() || !there->second.success) {
      Violated("I2", absl::StrCat(NameOf(flow.key), " succeeded at prefill alone"));
    }
    return;
  }
  ForEachByte(host, flow, [&](uint8_t byte, uint8_t wanted, const Buffer& where, int64_t item) {
    if (byte != wanted) Violated("I2", absl::StrCat(NameOf(flow.key), " has a wrong byte"));
    if (host.written[{where.offset.value(), item}] != 1) {
      Violated("I12", absl::StrCat(NameOf(flow.key), " item ", item, " not written once"));
    }
  });
}

void World::Pass(absl::Duration time) {
  now += time;
  for (const auto& host : hosts) {
    while (host->core->NextDeadline() <= now) host->core->OnTime(now);
  }
}

void World::Step() {
  const int64_t roll = Roll(1000);
  if (roll < 40) return OpenRoom();
  if (roll < 90) return OpenLate();
  if (roll < 200) return SendSome();
  if (roll < 208) return EndSomething();
  if (roll < 216) return Repeat();
  if (roll < 236) return Forge();
  if (roll < 238) return CutSession();
  if (roll < 239) return Roll(5) == 0 ? LoseEngine() : void();
  if (roll < 260) return Pass(absl::Milliseconds(Roll(20)));
  if (roll < 320) return AnswerSearch();
  if (roll < 600) return (void)CopySome();
  (void)DeliverOne();
}

void World::Quiesce() {
  for (int n = 0; n < 20'000; ++n) {
    const int64_t roll = Roll(4);
    if (roll == 0) {
      AnswerSearch();
    } else if (roll == 1) {
      CopySome();
    } else {
      DeliverOne();
    }
    if (n % 1000 == 999) Pass(absl::Seconds(1));
  }
  for (const auto& session : sessions_) {
    session->cut = true;
    TellDown(*session, true);
    TellDown(*session, false);
  }
  Pass(absl::Seconds(400));
  for (const auto& host : hosts) {
    while (!host->copies.empty()) CopySome();
    for (const auto& [key, flow] : host->flows) {
      if (!flow.ended) Violated("I4", NameOf(key) + " never ended");
      if (!flow.drained) Violated("I4", NameOf(key) + " never drained");
    }
    for (const auto& [what, count] : host->core->Ledger()) {
      if (count != 0 && what != "tombstones") {
        Violated("I9", absl::StrCat("host ", host->index, " holds ", what, " ", count));
      }
    }
    if (!host->seals.whole.empty()) Violated("I9", "a seal is left");
    if (host->seals.broken_twice != 0) Violated("I9", "a seal was broken twice");
    if (!host->owner.empty()) Violated("I9", "a page is still granted");
  }
}

}  // namespace pageferry::agent
