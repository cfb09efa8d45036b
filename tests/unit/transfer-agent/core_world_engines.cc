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
#include "tests/unit/transfer-agent/core_world.h"

namespace pageferry::agent {
namespace {

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
  if (it->second.ended != flow.ended) Violated("I7", NameOf(flow.key) + " ended by a duplicate");
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
                                   Abort{.room = key,
                                         .error = absl::AbortedError(""),
                                         .capability = "a guess"}}
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
      Violated("I5", NameOf(room) + " changed by a forged frame");
    }
  }
}

void World::LoseEngine() {
  Host& host = *hosts[static_cast<size_t>(Roll(4))];
  ++counts["engines lost"];
  host.core->OnEngineGone(absl::CancelledError("gone"), now);
  for (const auto& [key, flow] : host.flows) {
    if (!flow.ended) Violated("I4", NameOf(key) + " outlives its engine's session");
  }
  host.core->OnEngineUp();
}

}  // namespace pageferry::agent
