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
namespace {

std::string Name(const RoomKey& key) {
  return absl::StrCat("room ", key.id.value(), "/", key.attempt.value());
}

std::vector<PageRun> RunsOf(const std::vector<int64_t>& pages, size_t first, size_t count) {
  std::vector<PageRun> runs;
  for (size_t i = first; i < first + count; ++i) runs.push_back({pages[i], 1});
  return MergeRuns(runs);
}

std::vector<StateIndices> StatesOf(const Flow& flow) {
  if (flow.states.empty()) return {};
  return {{.component = 0, .indices = flow.states}};
}

int64_t SlotOf(const Flow& flow) { return flow.slots.empty() ? -1 : flow.slots.front(); }

}  // namespace

Host::Host(World& w, size_t i, Role r) : world(w), index(i), role(r), engine(TestEngine(r)) {
  core = std::make_unique<AgentCore>(CoreLimits{},
                                     AgentCore::Ports{*this, *this, *this, seals, *this, probe});
  core->SetEngine(engine, TestAgent(absl::StrCat("host", i)));
  memory.resize(4 * 8 * kPages + 4 * kSlots + 2 * 2 * kStateItems, 0xee);
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

template <class F>
void World::ForEachByte(Host& host, const Flow& flow, F&& function) {
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
      each(ItemType::kPage, entry.layer * 8 + static_cast<int64_t>(entry.kind), entry.pages,
           flow.pages[n], flow.first + static_cast<int64_t>(n));
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
    Violated("I3", absl::StrCat(Name(event.room), " said ", Brief(event), " after its end"));
    return;
  }
  if (!IsTerminal(event.state)) return;
  if (event.state == RoomState::kSuccess && !event.drained) {
    Violated("I1", absl::StrCat(Name(event.room), " succeeded undrained"));
  }
  if (event.state == RoomState::kFailed && event.error.ok()) {
    Violated("I4", absl::StrCat(Name(event.room), " failed without a reason"));
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
      Violated("I2", absl::StrCat(Name(flow.key), " succeeded at prefill alone"));
    }
    return;
  }
  ForEachByte(host, flow, [&](uint8_t byte, uint8_t wanted, const Buffer& where, int64_t item) {
    if (byte != wanted) Violated("I2", absl::StrCat(Name(flow.key), " has a wrong byte"));
    if (host.written[{where.offset.value(), item}] != 1) {
      Violated("I12", absl::StrCat(Name(flow.key), " item ", item, " not written once"));
    }
  });
}

// --- engines ---

void World::OpenRoom() {
  const RoomId room(++last_room_);
  const int64_t order = Roll(3);
  if (order != 0) OpenSendFor(room);
  if (order != 1) OpenReceiveFor(room, 1);
}

// The side of a recent room that has not been opened yet, or a send again.
void World::OpenLate() {
  if (last_room_ == 0) return;
  const RoomId room(last_room_ - Roll(std::min<int64_t>(last_room_, 12)));
  const RoomKey first{room, Attempt(1)};
  if (Decode(room).flows.contains(first)) {
    OpenSendFor(room);
  } else {
    OpenReceiveFor(room, 1);
  }
}

void World::OpenReceiveFor(RoomId room, int64_t attempt) {
  Host& host = Decode(room);
  const RoomKey key{room, Attempt(attempt)};
  // Both engines know the prompt: its size comes from the room alone.
  Flow flow{.key = key,
            .host = host.index,
            .prefix = room.value() % 3,
            .total = room.value() % 3 + room.value() % 5};
  flow.first = flow.prefix;
  const int64_t pages = flow.total - flow.prefix;
  flow.pages = host.Take(ItemType::kPage, pages);
  if (static_cast<int64_t>(flow.pages.size()) < pages) return;
  if (room.value() % 7 < 3) flow.slots = host.Take(ItemType::kSlot, 1);
  if (room.value() % 5 < 2) flow.states = host.Take(ItemType::kState, room.value() % 3);
  for (const int64_t page : flow.pages) host.owner[{ItemType::kPage, page}] = key;
  for (const int64_t slot : flow.slots) host.owner[{ItemType::kSlot, slot}] = key;
  for (const int64_t state : flow.states) host.owner[{ItemType::kState, state}] = key;
  ForEachByte(host, flow, [&](uint8_t&, uint8_t, const Buffer& where, int64_t item) {
    host.written[{where.offset.value(), item}] = 0;
  });
  OpenReceive receive{.room = key,
                      .prefill_engine = EngineId("prefill"),
                      .runs = RunsOf(flow.pages, 0, flow.pages.size()),
                      .aux_slot = SlotOf(flow),
                      .states = StatesOf(flow),
                      .cached_prefix_pages = flow.prefix,
                      .timeout = Timeout(),
                      .priority = 0,
                      .capability = room.value() % 2 == 0 ? "secret" : ""};
  host.flows.emplace(key, std::move(flow));
  ++counts["receives"];
  host.core->OnEngineCommand(std::move(receive), now);
}

void World::OpenSendFor(RoomId room) {
  Host& host = Prefill(room);
  const RoomKey key{room, Attempt(0)};
  for (auto it = host.flows.lower_bound(key); it != host.flows.end() && it->first.id == room;
       ++it) {
    if (!it->second.ended) return;
  }
  host.flows.erase(key);
  Flow flow{.key = key,
            .host = host.index,
            .prefix = room.value() % 3,
            .total = room.value() % 3 + room.value() % 5};
  flow.first = Roll(2) == 0 ? 0 : flow.prefix;
  flow.sent = flow.first;
  const int64_t pages = flow.total - flow.first;
  flow.pages = host.Take(ItemType::kPage, pages);
  if (static_cast<int64_t>(flow.pages.size()) < pages) return;
  if (room.value() % 7 < 3) flow.slots = host.Take(ItemType::kSlot, 1);
  if (room.value() % 5 < 2) flow.states = host.Take(ItemType::kState, room.value() % 3);
  ForEachByte(host, flow,
              [](uint8_t& byte, uint8_t wanted, const Buffer&, int64_t) { byte = wanted; });
  host.flows.emplace(key, std::move(flow));
  ++counts["sends"];
  host.core->OnEngineCommand(OpenSend{.room = key,
                                      .timeout = Timeout(),
                                      .priority = 0,
                                      .capability = room.value() % 2 == 0 ? "secret" : ""},
                             now);
}

void World::SendSome() {
  Host& host = *hosts[static_cast<size_t>(Roll(2))];
  std::vector<Flow*> open;
  for (auto& [key, flow] : host.flows) {
    if (!flow.ended && !flow.said_last) open.push_back(&flow);
  }
  if (open.empty()) return;
  Flow& flow = *open[static_cast<size_t>(Roll(static_cast<int64_t>(open.size())))];
  const int64_t left = flow.total - flow.sent;
  const int64_t count = Roll(left + 1);
  SendChunk chunk{.room = flow.key,
                  .runs = RunsOf(flow.pages, static_cast<size_t>(flow.sent - flow.first),
                                 static_cast<size_t>(count)),
                  .first_position = flow.sent,
                  .last = count == left && Roll(2) == 0};
  if (Roll(2) == 0) chunk.room.attempt = Attempt(0);
  if (chunk.last) {
    chunk.aux_slot = SlotOf(flow);
    chunk.states = StatesOf(flow);
  }
  flow.sent += count;
  flow.said_last = chunk.last;
  host.core->OnEngineCommand(std::move(chunk), now);
}

void World::EndSomething() {
  Host& host = *hosts[static_cast<size_t>(Roll(4))];
  std::vector<RoomKey> live;
  for (const auto& [key, flow] : host.flows) {
    if (!flow.ended) live.push_back(key);
  }
  if (live.empty()) return;
  const RoomKey key = live[static_cast<size_t>(Roll(static_cast<int64_t>(live.size())))];
  ++counts["aborts"];
  switch (Roll(3)) {
    case 0:
      host.core->OnEngineCommand(AbortCommand{.room = key, .detail = "x"}, now);
      break;
    case 1:
      (void)host.core->AbortRoom(key, "x", now);
      break;
    default:
      if (host.role == Role::kPrefill) {
        host.core->OnEngineCommand(FailCommand{.room = key, .detail = "x"}, now);
      } else {
        OpenReceiveFor(key.id, key.attempt.value() + 1);  // retracted: a new attempt
      }
  }
}

// Commands that the engine gave before: each is refused or changes nothing.
void World::Repeat() {
  Host& host = *hosts[static_cast<size_t>(Roll(4))];
  if (host.flows.empty()) return;
  auto it = host.flows.begin();
  std::advance(it, Roll(static_cast<int64_t>(host.flows.size())));
  const Flow flow = it->second;
  if (host.role == Role::kPrefill) {
    if (flow.ended) return;
    host.core->OnEngineCommand(OpenSend{.room = flow.key}, now);
  } else {
    host.core->OnEngineCommand(OpenReceive{.room = flow.key,
                                           .prefill_engine = EngineId("prefill"),
                                           .runs = RunsOf(flow.pages, 0, flow.pages.size())},
                               now);
  }
  if (it->second.ended != flow.ended) Violated("I7", Name(flow.key) + " ended by a duplicate");
}

// Frames of attempts and sessions that have no business with the room.
void World::Forge() {
  if (sessions_.empty()) return;
  Session& session = *sessions_[static_cast<size_t>(Roll(static_cast<int64_t>(sessions_.size())))];
  if (session.cut) return;
  const bool to_prefill = Roll(2) == 0;
  Host& host = *hosts[to_prefill ? session.prefill : session.decode];
  if (host.flows.empty()) return;
  auto it = host.flows.begin();
  std::advance(it, Roll(static_cast<int64_t>(host.flows.size())));
  RoomKey key = it->first;
  const Host& partner = to_prefill ? Decode(key.id) : Prefill(key.id);
  const bool own_session = partner.index == (to_prefill ? session.decode : session.prefill);
  if (own_session) {
    if (key.attempt.value() < 2) return;
    key.attempt = Attempt(key.attempt.value() - 1);  // an old attempt
    const auto old = host.flows.find(key);
    if (old != host.flows.end() && !old->second.ended) return;
  }
  const std::map<RoomKey, Flow> before = host.flows;
  const std::vector<PeerFrame> frames =
      to_prefill
          ? std::vector<PeerFrame>{Taken{.room = key, .complete = true},
                                   Abort{.room = key, .error = absl::AbortedError("")}}
          : std::vector<PeerFrame>{Offer{.room = key, .runs = {{0, 1}}}, Completed{.room = key},
                                   Failed{.room = key, .error = absl::AbortedError("")}};
  const PeerId peer = to_prefill ? session.at_prefill : session.at_decode;
  host.core->OnPeerFrame(peer, Sequence(++sequence_),
                         frames[static_cast<size_t>(Roll(static_cast<int64_t>(frames.size())))],
                         now);
  ++counts["forged frames"];
  for (const auto& [room, flow] : host.flows) {
    const auto was = before.find(room);
    if (was == before.end() || was->second.ended != flow.ended) {
      Violated("I5", Name(room) + " changed by a forged frame");
    }
  }
}

void World::LoseEngine() {
  Host& host = *hosts[static_cast<size_t>(Roll(4))];
  ++counts["engines lost"];
  host.core->OnEngineGone(absl::CancelledError("gone"), now);
  for (const auto& [key, flow] : host.flows) {
    if (!flow.ended) Violated("I4", Name(key) + " outlives its engine's session");
  }
  host.core->OnEngineUp();
}

// --- the network and the movers ---

bool World::DeliverOne() {
  std::vector<std::pair<Session*, bool>> ready;
  for (const auto& session : sessions_) {
    if (!session->to_prefill.empty()) ready.emplace_back(session.get(), true);
    if (!session->to_decode.empty()) ready.emplace_back(session.get(), false);
  }
  if (ready.empty()) return false;
  const auto [session, to_prefill] =
      ready[static_cast<size_t>(Roll(static_cast<int64_t>(ready.size())))];
  std::deque<PeerFrame>& queue = to_prefill ? session->to_prefill : session->to_decode;
  PeerFrame frame = std::move(queue.front());
  queue.pop_front();
  const bool up = to_prefill ? session->up_at_prefill : session->up_at_decode;
  if (!up) return true;
  hosts[to_prefill ? session->prefill : session->decode]->core->OnPeerFrame(
      to_prefill ? session->at_prefill : session->at_decode, Sequence(++sequence_),
      std::move(frame), now);
  return true;
}

void World::AnswerSearch() {
  Host& host = *hosts[static_cast<size_t>(2 + Roll(2))];
  if (host.searches.empty()) return;
  const auto [ticket, room] = *host.searches.begin();
  host.searches.erase(ticket);
  const Host& prefill = Prefill(room);
  Session* use = nullptr;
  for (const auto& session : sessions_) {
    const bool same = session->prefill == prefill.index && session->decode == host.index;
    if (same && !session->cut) use = session.get();
  }
  if (use == nullptr) {
    auto session = std::make_unique<Session>();
    session->prefill = prefill.index;
    session->decode = host.index;
    session->at_prefill = PeerId(++last_peer_);
    session->at_decode = PeerId(++last_peer_);
    use = session.get();
    sessions_.push_back(std::move(session));
    hosts[use->prefill]->core->OnPeerUp(use->at_prefill, TestPeer(Role::kPrefill), now);
    host.core->OnPeerUp(use->at_decode, TestPeer(Role::kDecode), now);
    ++counts["sessions"];
  }
  host.core->OnPeerFound(ticket, use->at_decode, now);
}

bool World::CopySome() {
  Host& host = *hosts[static_cast<size_t>(2 + Roll(2))];
  if (host.copies.empty()) return false;
  auto it = host.copies.begin();
  std::advance(it, Roll(static_cast<int64_t>(host.copies.size())));
  Host::Copy& copy = it->second;
  const int64_t ticket = it->first;
  for (int64_t n = Roll(12); n >= 0 && copy.step < copy.batch.steps.size(); --n) {
    CopyItem(host, copy);
  }
  const bool cancelled = copy.batch.cancel->cancelled() && Roll(3) == 0;
  if (copy.step < copy.batch.steps.size() && !cancelled) return true;
  const Session* session = SessionOf(copy.peer);
  const Host& source = *hosts[session->prefill];
  absl::Status status;
  if (cancelled) {
    status = absl::CancelledError("cancelled");
  } else if (!source.seals.IsWhole(copy.batch.seal)) {
    status = MakeError(absl::StatusCode::kAborted, Reason::kSealBroken, "broken");
    ++counts["seals broken under a copy"];
  } else if (Roll(100) == 0) {
    status = absl::UnavailableError("transport");
  }
  host.copies.erase(it);
  host.core->OnMoveDone(ticket, status, now);
  return true;
}

void World::CopyItem(Host& host, Host::Copy& copy) {
  const transport::Step& step = copy.batch.steps[copy.step];
  const transport::EntryPair& pair = (*step.entries)[copy.entry];
  const RunPair& run = step.runs[copy.run];
  Host& source = *hosts[SessionOf(copy.peer)->prefill];
  const int64_t to = run.target_first + copy.item;
  std::memcpy(host.At(pair.target_offset, to, pair.item_size),
              source.At(pair.source_offset, run.source_first + copy.item, pair.item_size),
              static_cast<size_t>(pair.item_size.value()));
  const ItemType type = pair.item_size.value() == 8   ? ItemType::kPage
                        : pair.item_size.value() == 4 ? ItemType::kSlot
                                                      : ItemType::kState;
  const auto owner = host.owner.find({type, to});
  if (owner == host.owner.end()) {
    Violated("I1", absl::StrCat("item ", to, " written after it was drained"));
  } else if (++host.written[{pair.target_offset.value(), to}] > 1) {
    Violated("I12", absl::StrCat(Name(owner->second), " item ", to, " written twice"));
  }
  if (++copy.item < run.count) return;
  copy.item = 0;
  if (++copy.run < step.runs.size()) return;
  copy.run = 0;
  if (++copy.entry < step.entries->size()) return;
  copy.entry = 0;
  ++copy.step;
}

void World::CutSession() {
  if (sessions_.empty()) return;
  Session& session = *sessions_[static_cast<size_t>(Roll(static_cast<int64_t>(sessions_.size())))];
  if (!session.cut) {
    session.cut = true;
    ++counts["sessions cut"];
    while (!session.to_prefill.empty() && Roll(2) == 0) session.to_prefill.pop_back();
    while (!session.to_decode.empty() && Roll(2) == 0) session.to_decode.pop_back();
  }
  TellDown(session, Roll(2) == 0);
}

void World::TellDown(Session& session, bool prefill) {
  bool& up = prefill ? session.up_at_prefill : session.up_at_decode;
  if (!up) return;
  up = false;
  hosts[prefill ? session.prefill : session.decode]->core->OnPeerDown(
      prefill ? session.at_prefill : session.at_decode, absl::UnavailableError("cut"), now);
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
      if (!flow.ended) Violated("I4", Name(key) + " never ended");
      if (!flow.drained) Violated("I4", Name(key) + " never drained");
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
