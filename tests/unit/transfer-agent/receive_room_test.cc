#include "services/transfer-agent/receive_room.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "tests/fakes/fake_ports.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/transfer-agent/core_testing.h"

namespace pageferry::agent {
namespace {

using testing::ElementsAre;

absl::Status SealBroken() {
  return MakeError(absl::StatusCode::kAborted, Reason::kSealBroken, "seal broken");
}

// The room of all tests: 4 pages behind a prefix of 2, with aux and one state index.
class ReceiveRoomTest : public testing::Test {
 protected:
  ReceiveRoomTest() { MakeRoom(); }

  void MakeRoom() {
    room_ = std::make_unique<ReceiveRoom>(1, TestOwn(Role::kDecode), actions_, now_);
    offered_ = 0;
    actions_.last_ticket = 0;
    actions_.batches.clear();
    actions_.Take();
  }
  static OpenReceive Request() {
    return {.room = {RoomId(9), Attempt(1)},
            .prefill_engine = EngineId("prefill"),
            .runs = {{10, 3}, {20, 1}},
            .aux_slot = 1,
            .states = {{.component = 0, .indices = {3}}},
            .cached_prefix_pages = 2,
            .timeout = absl::Seconds(30)};
  }
  void Open() { room_->Open(Request(), now_); }
  void Find() { room_->OnPeerFound(link_, now_); }
  Offer Next(int64_t pages, bool last = false) {
    Offer offer{.room = room_->key(),
                .first_granted_index = offered_,
                .last = last,
                .seal = {.region = RegionId(1), .value = 5}};
    if (pages > 0) offer.runs = {{40 + offered_, pages}};
    if (last) {
      offer.aux_slot = 0;
      offer.states = {{.component = 0, .indices = {5}}};
    }
    offered_ += pages;
    return offer;
  }
  void GetOffer(int64_t pages, bool last = false) { room_->OnOffer(Next(pages, last), now_); }
  void Done(int64_t ticket, const absl::Status& status = absl::OkStatus()) {
    room_->OnMoveDone(ticket, status, now_);
  }
  void Complete(int64_t pages = 4, int64_t bytes = kAllBytes) {
    (void)room_->OnCompleted({.room = room_->key(), .pages = pages, .bytes = ByteCount(bytes)},
                             now_);
  }
  void Abort() { room_->End(AbortedByEngine("client left"), now_); }

  static constexpr int64_t kAllBytes = 4 * 32 + 4 + 4;

  FakeProbe probe_;
  RecordedActions actions_{probe_};
  MonotonicTime now_ = TestStart();
  std::shared_ptr<const PeerLink> link_ = TestLink(Role::kDecode);
  std::unique_ptr<ReceiveRoom> room_;
  int64_t offered_ = 0;
};

TEST_F(ReceiveRoomTest, EveryStateMeetsEveryEvent) {
  using Step = std::function<void()>;
  const std::map<std::string, Step> states = {
      {"bootstrapping", [&] { Open(); }},
      {"waiting", [&] { Open(), Find(); }},
      {"moving", [&] { Open(), Find(), GetOffer(1); }},
      {"moved", [&] { Open(), Find(), GetOffer(1), Done(1); }},
      {"last_moving", [&] { Open(), Find(), GetOffer(4, true); }},
      {"last_moved", [&] { Open(), Find(), GetOffer(4, true), Done(1); }},
      {"completed_moving", [&] { Open(), Find(), GetOffer(4, true), Complete(); }},
      {"seal_broken", [&] { Open(), Find(), GetOffer(1), Done(1, SealBroken()); }},
      {"success", [&] { Open(), Find(), GetOffer(4, true), Complete(), Done(1); }},
      {"failed", [&] { Open(), Find(), GetOffer(1), Abort(); }},
      {"failed_drained", [&] { Open(), Find(), Abort(); }},
  };
  const std::map<std::string, Step> events = {
      {"offer", [&] { GetOffer(1); }},
      {"last_offer", [&] { GetOffer(4 - offered_, true); }},
      {"offer_again", [&] { --offered_, GetOffer(1); }},
      {"completed", [&] { Complete(); }},
      {"completed_less", [&] { Complete(3, kAllBytes - 32); }},
      {"done", [&] { Done(1); }},
      {"done_broken", [&] { Done(1, SealBroken()); }},
      {"done_error", [&] { Done(1, absl::UnavailableError("link down")); }},
      {"done_unknown", [&] { Done(99); }},
      {"refused", [&] { room_->OnRefused(RoomNotFound(room_->key()), now_); }},
      {"abort", [&] { Abort(); }},
      {"peer_failed", [&] { room_->End(EndedByPeer(FailedByEngine("oom").tell), now_); }},
      {"deadline", [&] { room_->OnTimer(now_ + absl::Seconds(30)); }},
  };
  const auto fails = [](const std::string& own, const std::string& tell) {
    return absl::StrCat("event FAILED ", own, tell.empty() ? "" : "; abort " + tell);
  };
  const auto drained = [](const std::string& own) {
    return absl::StrCat("; event FAILED ", own, " drained");
  };
  const auto both = [&](const std::string& own, const std::string& tell) {
    return fails(own, tell) + drained(own);
  };
  const std::string mismatch = "PAGE_COUNT_MISMATCH";
  const std::string moves_last = absl::StrCat("move ", kAllBytes);
  const std::string success =
      absl::StrCat("event SUCCESS drained; taken 4/", kAllBytes, " complete");
  // state, event -> what the room does. A row that is missing does nothing.
  std::map<std::pair<std::string, std::string>, std::string> rows = {
      {{"bootstrapping", "abort"}, both("ABORTED", "")},
      {{"bootstrapping", "peer_failed"}, both("PEER_ENGINE_FAILED", "")},
      {{"bootstrapping", "deadline"}, both("DEADLINE", "")},
      {{"bootstrapping", "completed"}, "skip"},
      {{"bootstrapping", "completed_less"}, "skip"},
      {{"waiting", "offer"}, "event TRANSFERRING; move 32"},
      {{"waiting", "last_offer"}, "event TRANSFERRING; " + moves_last},
      {{"waiting", "offer_again"}, both(mismatch, mismatch)},
      {{"waiting", "completed"}, both(mismatch, mismatch)},
      {{"waiting", "completed_less"}, both(mismatch, mismatch)},
      {{"waiting", "refused"}, both("ROOM_NOT_FOUND", "")},
      {{"waiting", "abort"}, both("ABORTED", "PEER_ABORTED")},
      {{"waiting", "peer_failed"}, both("PEER_ENGINE_FAILED", "")},
      {{"waiting", "deadline"}, both("DEADLINE", "DEADLINE")},
      {{"moving", "offer"}, "move 32"},
      {{"moving", "last_offer"}, "move 104"},
      {{"moving", "offer_again"}, fails(mismatch, mismatch)},
      {{"moving", "completed"}, fails(mismatch, mismatch)},
      {{"moving", "completed_less"}, fails(mismatch, mismatch)},
      {{"moving", "done"}, "taken 1/32"},
      {{"moving", "done_error"}, both("TRANSPORT", "TRANSPORT")},
      {{"moving", "abort"}, fails("ABORTED", "PEER_ABORTED")},
      {{"moving", "peer_failed"}, fails("PEER_ENGINE_FAILED", "")},
      {{"moving", "deadline"}, fails("DEADLINE", "DEADLINE")},
      {{"moved", "offer"}, "move 32"},
      {{"moved", "last_offer"}, "move 104"},
      {{"moved", "offer_again"}, both(mismatch, mismatch)},
      {{"moved", "completed"}, both(mismatch, mismatch)},
      {{"moved", "completed_less"}, both(mismatch, mismatch)},
      {{"moved", "abort"}, both("ABORTED", "PEER_ABORTED")},
      {{"moved", "peer_failed"}, both("PEER_ENGINE_FAILED", "")},
      {{"moved", "deadline"}, both("DEADLINE", "DEADLINE")},
      {{"last_moving", "offer"}, fails("OUT_OF_ORDER", "OUT_OF_ORDER")},
      {{"last_moving", "last_offer"}, fails("OUT_OF_ORDER", "OUT_OF_ORDER")},
      {{"last_moving", "offer_again"}, fails("OUT_OF_ORDER", "OUT_OF_ORDER")},
      {{"last_moving", "done"}, absl::StrCat("taken 4/", kAllBytes)},
      {{"last_moving", "done_error"}, both("TRANSPORT", "TRANSPORT")},
      {{"last_moving", "abort"}, fails("ABORTED", "PEER_ABORTED")},
      {{"last_moving", "peer_failed"}, fails("PEER_ENGINE_FAILED", "")},
      {{"last_moving", "deadline"}, fails("DEADLINE", "DEADLINE")},
      {{"last_moved", "offer"}, both("OUT_OF_ORDER", "OUT_OF_ORDER")},
      {{"last_moved", "last_offer"}, both("OUT_OF_ORDER", "OUT_OF_ORDER")},
      {{"last_moved", "offer_again"}, both("OUT_OF_ORDER", "OUT_OF_ORDER")},
      {{"last_moved", "completed"}, success},
      {{"last_moved", "completed_less"}, both(mismatch, mismatch)},
      {{"last_moved", "abort"}, both("ABORTED", "PEER_ABORTED")},
      {{"last_moved", "peer_failed"}, both("PEER_ENGINE_FAILED", "")},
      {{"last_moved", "deadline"}, both("DEADLINE", "DEADLINE")},
      {{"completed_moving", "offer"}, fails("OUT_OF_ORDER", "OUT_OF_ORDER")},
      {{"completed_moving", "last_offer"}, fails("OUT_OF_ORDER", "OUT_OF_ORDER")},
      {{"completed_moving", "offer_again"}, fails("OUT_OF_ORDER", "OUT_OF_ORDER")},
      {{"completed_moving", "done"}, success},
      {{"completed_moving", "done_error"}, both("TRANSPORT", "TRANSPORT")},
      {{"completed_moving", "abort"}, fails("ABORTED", "PEER_ABORTED")},
      {{"completed_moving", "peer_failed"}, fails("PEER_ENGINE_FAILED", "")},
      {{"completed_moving", "deadline"}, fails("DEADLINE", "DEADLINE")},
      {{"seal_broken", "abort"}, both("ABORTED", "PEER_ABORTED")},
      {{"seal_broken", "peer_failed"}, both("PEER_ENGINE_FAILED", "")},
      {{"seal_broken", "deadline"}, both("SEAL_BROKEN", "SEAL_BROKEN")},
      {{"failed", "done"}, "event FAILED ABORTED drained"},
      {{"failed", "done_broken"}, "event FAILED ABORTED drained"},
      {{"failed", "done_error"}, "event FAILED ABORTED drained"},
  };
  for (const auto& [row, expected] : rows) {
    ASSERT_TRUE(states.contains(row.first) && events.contains(row.second)) << row.second;
  }
  for (const auto& [state, reach] : states) {
    for (const auto& [event, happen] : events) {
      const auto row = rows.find({state, event});
      if (row != rows.end() && row->second == "skip") continue;  // no session yet: no frames
      SCOPED_TRACE(absl::StrCat(state, " + ", event));
      MakeRoom();
      reach();
      actions_.Take();
      const RoomState before = room_->state();
      const bool was_drained = room_->drained();
      happen();
      EXPECT_EQ(actions_.Take(), row == rows.end() ? "" : row->second);
      EXPECT_TRUE(!IsTerminal(before) || room_->state() == before);  // I3
      EXPECT_TRUE(!was_drained || room_->drained());                 // I3
      EXPECT_TRUE(!room_->drained() || room_->Gauges().moves == 0);  // I1
    }
  }
}

TEST_F(ReceiveRoomTest, TheWholeWay) {
  Open();
  EXPECT_EQ(actions_.Take(), "event BOOTSTRAPPING");
  Find();
  EXPECT_EQ(actions_.Take(), "grant 4 behind 2; event WAITING_FOR_INPUT");
  GetOffer(3);
  GetOffer(1, true);
  EXPECT_EQ(actions_.Take(), "event TRANSFERRING; move 96; move 40");
  Complete();
  Done(2);
  EXPECT_EQ(actions_.Take(), "taken 1/40");
  Done(1);
  EXPECT_EQ(actions_.Take(), "event SUCCESS drained; taken 4/136 complete");
  EXPECT_EQ(probe_.completed, 1);
}

TEST_F(ReceiveRoomTest, BatchNamesEachBufferAndPageOnce) {
  Open(), Find(), GetOffer(4, true);
  ASSERT_EQ(actions_.batches.size(), 1u);
  const std::vector<transport::Step>& steps = actions_.batches[0].steps;
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].entries->size(), 4u);
  EXPECT_THAT(steps[0].runs, ElementsAre(RunPair{40, 10, 3}, RunPair{43, 20, 1}));
  EXPECT_THAT(steps[1].runs, ElementsAre(RunPair{0, 1, 1}));
  EXPECT_EQ(steps[2].entries->size(), 2u);
  EXPECT_THAT(steps[2].runs, ElementsAre(RunPair{5, 3, 1}));
  // The target lists V of layer 1 first, the source last.
  EXPECT_EQ(steps[0].entries->front().source_offset, ByteCount(24 * kPages));
  EXPECT_EQ(steps[0].entries->front().target_offset, ByteCount(24 * kPages));
}

TEST_F(ReceiveRoomTest, FullPrefixHitWithoutExtrasNeedsNoMove) {
  OpenReceive request = Request();
  request.runs.clear();
  request.aux_slot = -1;
  request.states.clear();
  room_->Open(std::move(request), now_);
  Find();
  room_->OnOffer({.room = room_->key(), .last = true}, now_);
  actions_.Take();
  Complete(0, 0);
  EXPECT_EQ(actions_.Take(), "event SUCCESS drained; taken 0/0 complete");
}

TEST_F(ReceiveRoomTest, I2_ABrokenSealIsNeverASuccess) {
  Open(), Find(), GetOffer(3), GetOffer(1, true), Complete();
  actions_.Take();
  Done(1, SealBroken());
  Done(2);
  EXPECT_EQ(actions_.Take(), "");
  EXPECT_TRUE(actions_.batches[0].cancel->cancelled());
  EXPECT_EQ(room_->NextTimer(), now_ + ReceiveRoom::kSealGrace);
  room_->OnTimer(now_ + ReceiveRoom::kSealGrace);
  EXPECT_EQ(actions_.Take(),
            "event FAILED SEAL_BROKEN; abort SEAL_BROKEN; event FAILED SEAL_BROKEN drained");
}

TEST_F(ReceiveRoomTest, I1_DrainedWaitsForEveryMoveAndForNoTimer) {
  Open(), Find(), GetOffer(1), GetOffer(1);
  Abort();
  EXPECT_TRUE(actions_.batches[0].cancel->cancelled());
  EXPECT_EQ(room_->NextTimer(), MonotonicTime::InfiniteFuture());
  actions_.Take();
  room_->OnTimer(now_ + absl::Hours(1));
  Done(2, absl::CancelledError());
  EXPECT_EQ(actions_.Take(), "");
  EXPECT_FALSE(room_->drained());
  Done(1);
  EXPECT_EQ(actions_.Take(), "event FAILED ABORTED drained");
  EXPECT_TRUE(room_->drained());
}

TEST_F(ReceiveRoomTest, I1_WhereTheSourceDrivesDrainedNeedsItsReply) {
  auto link = std::make_shared<PeerLink>(*link_);
  link->info.driver = transport::Driver::kSource;
  Open();
  room_->OnPeerFound(link, now_);
  Abort();
  EXPECT_FALSE(room_->drained());
  room_->OnAbortReply({.room = room_->key(), .drained = false}, now_);
  EXPECT_FALSE(room_->drained());
  room_->OnAbortReply({.room = room_->key(), .drained = true}, now_);
  EXPECT_TRUE(room_->drained());
}

TEST_F(ReceiveRoomTest, OffersAgainstTheRulesFailTheRoomAndTellThePeer) {
  struct Row {
    std::string name;
    Offer offer;
    Reason reason;
  };
  const std::vector<StateIndices> good = {{0, {1}}};
  const std::vector<Row> table = {
      {"gap", {.runs = {{0, 1}}, .first_granted_index = 1}, Reason::kPageCountMismatch},
      {"negative", {.runs = {{0, 1}}, .first_granted_index = -1}, Reason::kPageCountMismatch},
      {"surplus", {.runs = {{0, 5}}}, Reason::kPageCountMismatch},
      {"too few at last",
       {.runs = {{0, 3}}, .last = true, .aux_slot = 0, .states = good},
       Reason::kPageCountMismatch},
      {"page outside", {.runs = {{kPages, 1}}}, Reason::kBadPages},
      {"page twice", {.runs = {{1, 1}, {1, 1}}}, Reason::kBadPages},
      {"endless run", {.runs = {{1, INT64_MAX}}}, Reason::kBadPages},
      {"aux early", {.runs = {{0, 1}}, .aux_slot = 0}, Reason::kInvalidField},
      {"aux outside",
       {.runs = {{0, 4}}, .last = true, .aux_slot = kSlots, .states = good},
       Reason::kInvalidField},
      {"aux missing",
       {.runs = {{0, 4}}, .last = true, .aux_slot = -1, .states = good},
       Reason::kStateMismatch},
      {"states missing", {.runs = {{0, 4}}, .last = true, .aux_slot = 0}, Reason::kStateMismatch},
      {"state outside",
       {.runs = {{0, 4}}, .last = true, .aux_slot = 0, .states = {{0, {-1}}}},
       Reason::kInvalidField},
      {"component outside",
       {.runs = {{0, 4}}, .last = true, .aux_slot = 0, .states = {{-1, {1}}}},
       Reason::kInvalidField},
  };
  for (const Row& row : table) {
    SCOPED_TRACE(row.name);
    MakeRoom();
    Open(), Find();
    actions_.Take();
    room_->OnOffer(row.offer, now_);
    const std::string name(ReasonName(row.reason));
    EXPECT_EQ(actions_.Take(), absl::StrCat("event FAILED ", name, "; abort ", name,
                                            "; event FAILED ", name, " drained"));
  }
}

TEST_F(ReceiveRoomTest, RequestsAreChecked) {
  const ProfileSizes sizes = SizesOf(TestEngine(Role::kDecode).profile);
  EXPECT_THAT(CheckReceive(Request(), sizes), IsOk());
  const auto with = [](auto change) {
    OpenReceive request = Request();
    change(request);
    return request;
  };
  const auto invalid = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField);
  const auto bad_pages = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadPages);
  EXPECT_THAT(CheckReceive(with([](auto& r) { r.room.attempt = Attempt(0); }), sizes), invalid);
  EXPECT_THAT(CheckReceive(with([](auto& r) { r.prefill_engine = EngineId(); }), sizes), invalid);
  EXPECT_THAT(CheckReceive(with([](auto& r) { r.cached_prefix_pages = -1; }), sizes), invalid);
  EXPECT_THAT(CheckReceive(with([](auto& r) { r.aux_slot = kSlots; }), sizes), invalid);
  EXPECT_THAT(CheckReceive(with([](auto& r) { r.aux_slot = -2; }), sizes), invalid);
  EXPECT_THAT(CheckReceive(with([](auto& r) { r.states[0].component = 1; }), sizes), invalid);
  EXPECT_THAT(CheckReceive(with([](auto& r) { r.runs = {{60, 5}}; }), sizes), bad_pages);
  EXPECT_THAT(CheckReceive(with([](auto& r) { r.runs = {{1, 2}, {2, 1}}; }), sizes), bad_pages);
}

TEST_F(ReceiveRoomTest, EventsTellTimesAndTransport) {
  Open();
  now_ += absl::Milliseconds(5);
  Find();
  now_ += absl::Milliseconds(7);
  const RoomView view = room_->View(now_);
  EXPECT_EQ(view.age, absl::Milliseconds(12));
  EXPECT_EQ(view.time_left, absl::Seconds(30) - absl::Milliseconds(12));
  EXPECT_EQ(view.peer_engine, "prefill");
  EXPECT_EQ(view.transport, transport::TransportKind::kLocal);
  EXPECT_EQ(view.pages_granted, 4);
}

}  // namespace
}  // namespace pageferry::agent
