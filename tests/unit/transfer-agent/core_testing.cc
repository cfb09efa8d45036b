#include "tests/unit/transfer-agent/core_testing.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/common/error.h"
#include "libs/transport/transport.h"

namespace pageferry::agent {
namespace {

std::string Why(const absl::Status& error) { return std::string(ReasonName(ReasonOf(error))); }

struct FrameToText {
  std::string operator()(const Grant& f) const {
    return absl::StrCat("grant ", TotalPages(f.runs), " behind ", f.cached_prefix_pages);
  }
  std::string operator()(const Taken& f) const {
    return absl::StrCat("taken ", f.pages, "/", f.bytes.value(), f.complete ? " complete" : "");
  }
  std::string operator()(const Offer& f) const {
    return absl::StrCat("offer ", f.first_granted_index, "+", TotalPages(f.runs),
                        f.last ? " last" : "");
  }
  std::string operator()(const Completed& f) const {
    return absl::StrCat("completed ", f.pages, "/", f.bytes.value());
  }
  std::string operator()(const Failed& f) const { return "failed " + Why(f.error); }
  std::string operator()(const Abort& f) const { return "abort " + Why(f.error); }
  std::string operator()(const AbortReply& f) const {
    return absl::StrCat("abort_reply", f.drained ? " drained" : "", f.unknown ? " unknown" : "");
  }
  std::string operator()(const Refused& f) const {
    return absl::StrCat("refused #", f.sequence.value(), " ", Why(f.error));
  }
  std::string operator()(const GoAway&) const { return "go_away"; }
};

struct EventToText {
  std::string operator()(const RoomEvent& e) const { return "event " + Brief(e); }
  std::string operator()(const PrefixKnown& e) const {
    return absl::StrCat("prefix ", e.cached_prefix_pages, "+", e.granted_pages);
  }
  std::string operator()(const CommandRefused& e) const {
    return absl::StrCat("refused ", e.command, " ", Why(e.error));
  }
  std::string operator()(const EngineLost& e) const { return "engine_lost " + e.engine.value(); }
  std::string operator()(const Backpressure& e) const {
    return e.engaged ? "backpressure on" : "backpressure off";
  }
};

Buffer At(int64_t offset, int64_t item_size, int64_t count) {
  return {.pool_name = "pool",
          .region = RegionId(1),
          .offset = ByteCount(offset),
          .item_size = ByteCount(item_size),
          .item_count = count};
}

}  // namespace

EngineInfo TestEngine(Role role) {
  EngineInfo engine{.name_space = NamespaceName("default"),
                    .engine_id = EngineId(role == Role::kPrefill ? "prefill" : "decode"),
                    .role = role};
  KvProfile& profile = engine.profile;
  profile.page_tokens = 16;
  profile.data_type = DataType::kFloat16;
  profile.layout = KvLayout::kNhd;
  profile.total_kv_heads = 3;
  profile.rank_kv_heads = 3;
  profile.head_dim = 64;
  int64_t offset = 0;
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (const EntryKind kind : {EntryKind::kK, EntryKind::kV}) {
      profile.entries.push_back({.layer = layer, .kind = kind, .pages = At(offset, 8, kPages)});
      offset += 8 * kPages;
    }
  }
  profile.aux.push_back({.name = "first_token", .slots = At(offset, 4, kSlots)});
  offset += 4 * kSlots;
  StateComponent& component = profile.states.emplace_back();
  for (int32_t layer = 0; layer < 2; ++layer) {
    component.entries.push_back({.layer = layer, .items = At(offset, 2, kStateItems)});
    offset += 2 * kStateItems;
  }
  // The two sides list the same buffers in another order.
  if (role == Role::kDecode) std::swap(profile.entries.front(), profile.entries.back());
  return engine;
}

AgentRef TestAgent(const std::string& name) { return {.id = AgentId(name), .epoch = Epoch(1)}; }

PeerInfo TestPeer(Role own_role, const std::string& agent) {
  const bool dials = own_role == Role::kDecode;
  return {.agent = TestAgent(agent),
          .engine = TestEngine(dials ? Role::kPrefill : Role::kDecode),
          .dialled = dials};
}

std::string Brief(const RoomEvent& event) {
  std::string text = RoomStateName(event.state);
  if (!event.error.ok()) absl::StrAppend(&text, " ", Why(event.error));
  if (event.drained) text += " drained";
  return text;
}
std::string Brief(const EngineEvent& event) { return std::visit(EventToText(), event); }
std::string Brief(const PeerFrame& frame) { return std::visit(FrameToText(), frame); }

absl::StatusOr<transport::SealRef> RecordedActions::MakeSeal() {
  Add("seal");
  if (seals_left) return transport::SealRef{.region = RegionId(1), .value = 5};
  return MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached, "no seal left");
}

int64_t RecordedActions::StartMove(int64_t, PeerId, transport::Batch batch) {
  Add(absl::StrCat("move ", transport::BatchBytes(batch.steps).value()));
  batches.push_back(std::move(batch));
  return ++last_ticket;
}

std::string RecordedActions::Take() {
  std::string all = absl::StrJoin(done_, "; ");
  done_.clear();
  return all;
}

std::shared_ptr<const PeerLink> TestLink(Role own_role, PeerId id) {
  const PeerInfo info = TestPeer(own_role);
  const KvProfile own = TestEngine(own_role).profile;
  return std::make_shared<PeerLink>(PeerLink{id, info, SizesOf(info.engine.profile),
                                             info.dialled
                                                 ? MakePairPlan(info.engine.profile, own)
                                                 : MakePairPlan(own, info.engine.profile)});
}

std::shared_ptr<const OwnEngine> TestOwn(Role role) {
  const EngineInfo engine = TestEngine(role);
  return std::make_shared<OwnEngine>(OwnEngine{engine, SizesOf(engine.profile)});
}

}  // namespace pageferry::agent
