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
    Violated("I12", absl::StrCat(NameOf(owner->second), " item ", to, " written twice"));
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

}  // namespace pageferry::agent
