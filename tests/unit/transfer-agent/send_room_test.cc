#include "services/transfer-agent/send_room.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_ports.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/transfer-agent/core_testing.h"

namespace pageferry::agent {
namespace {

using testing::ElementsAre;

// The room of all tests: 4 pages granted behind a prefix of 2, with aux and one state index.
Grant TestGrant() {
  return {.room = {RoomId(9), Attempt(1)},
          .runs = {{10, 4}},
          .aux_slot = 1,
          .states = {{.component = 0, .indices = {3}}},
          .cached_prefix_pages = 2,
          .timeout = absl::Seconds(60)};
}

class SendRoomTest : public testing::Test {
 protected:
  SendRoomTest() { MakeRoom(); }

  void MakeRoom(int64_t max_held = 2) {
    room_ = std::make_unique<SendRoom>(RoomKey{RoomId(9), Attempt(0)}, 1, TestOwn(Role::kPrefill),
                                       actions_, max_held, now_);
    position_ = 0;
    actions_.Take();
  }

  void Open(bool dummy = false) {
    room_->Open({.room = {RoomId(9), Attempt(0)}, .timeout = absl::Seconds(30), .dummy = dummy},
                now_);
  }
  void Hold() { room_->Hold(link_, Sequence(4), TestGrant(), absl::Seconds(20), now_); }
  void GetGrant(Grant grant = TestGrant()) {
    room_->OnGrant(link_, Sequence(4), std::move(grant), now_);
  }
  SendChunk Next(int64_t pages, bool last = false) {
    SendChunk chunk{.room = room_->key(), .first_position = position_, .last = last};
    if (pages > 0) chunk.runs = {{position_, pages}};
    if (last) {
      chunk.aux_slot = 0;
      chunk.states = {{.component = 0, .indices = {5}}};
    }
    position_ += pages;
    return chunk;
  }
  void Chunk(int64_t pages, bool last = false) { room_->OnChunk(Next(pages, last), now_); }
  absl::Status Take(int64_t pages, int64_t bytes, bool complete = false) {
    return room_->OnTaken(
        {.room = room_->key(), .pages = pages, .bytes = ByteCount(bytes), .complete = complete},
        now_);
  }
  void Abort() { room_->End(AbortedByEngine("client left"), now_); }

  // 4 pages of 32, a slot of 4, a state index of 4.
  static constexpr int64_t kAllBytes = 4 * 32 + 4 + 4;

  FakeProbe probe_;
  RecordedActions actions_{probe_};
  MonotonicTime now_ = TestStart();
  std::shared_ptr<const PeerLink> link_ = TestLink(Role::kPrefill);
  std::unique_ptr<SendRoom> room_;
  int64_t position_ = 0;
};

TEST_F(SendRoomTest, EveryStateMeetsEveryEvent) {
  using Step = std::function<void()>;
  const std::map<std::string, Step> states = {
      {"new", [] {}},
      {"opened", [&] { Open(); }},
      {"orphan", [&] { Hold(); }},
      {"waiting", [&] { Open(), GetGrant(); }},
      {"transferring", [&] { Open(), GetGrant(), Chunk(3); }},
      {"offered", [&] { Open(), GetGrant(), Chunk(6, true); }},
      {"success", [&] { Open(), GetGrant(), Chunk(6, true), (void)Take(4, kAllBytes, true); }},
      {"failed", [&] { Open(), GetGrant(), Abort(); }},
      {"dummy", [&] { Open(true); }},
  };
  const std::map<std::string, Step> events = {
      {"chunk", [&] { Chunk(1); }},
      {"prefix_chunk", [&] { Chunk(0); }},
      {"last_chunk", [&] { Chunk(6 - position_, true); }},
      {"gap", [&] { ++position_, Chunk(1); }},
      {"taken", [&] { (void)Take(1, 32); }},
      {"taken_complete", [&] { (void)Take(4, kAllBytes, true); }},
      {"abort", [&] { Abort(); }},
      {"peer_abort", [&] { room_->End(EndedByPeer(AbortedByEngine("").tell), now_); }},
      {"deadline", [&] { room_->OnTimer(now_); }},
  };
  const auto fails = [](const std::string& own, const std::string& tell, bool seal) {
    return absl::StrCat("event FAILED ", own, tell.empty() ? "" : "; failed " + tell,
                        seal ? "; break" : "", "; event FAILED ", own, " drained");
  };
  const std::string mismatch = "PAGE_COUNT_MISMATCH";
  const std::string success = "break; event SUCCESS drained";
  // state, event -> what the room does. A row that is missing does nothing.
  const std::map<std::pair<std::string, std::string>, std::string> rows = {
      {{"new", "abort"}, ""},
      {{"opened", "abort"}, fails("ABORTED", "", false)},
      {{"opened", "peer_abort"}, fails("PEER_ABORTED", "", false)},
      {{"opened", "deadline"}, fails("DEADLINE", "", false)},
      {{"orphan", "abort"}, "failed PEER_ABORTED"},
      {{"orphan", "deadline"}, "failed DEADLINE"},
      {{"waiting", "last_chunk"},
       absl::StrCat("seal; event TRANSFERRING; offer 0+4 last; completed 4/", kAllBytes)},
      {{"waiting", "abort"}, fails("ABORTED", "PEER_ABORTED", false)},
      {{"waiting", "peer_abort"}, fails("PEER_ABORTED", "", false)},
      {{"waiting", "deadline"}, fails("DEADLINE", "DEADLINE", false)},
      {{"transferring", "chunk"}, "offer 1+1"},
      {{"transferring", "last_chunk"}, absl::StrCat("offer 1+3 last; completed 4/", kAllBytes)},
      {{"transferring", "gap"}, fails(mismatch, mismatch, true)},
      {{"transferring", "taken_complete"}, fails(mismatch, mismatch, true)},
      {{"transferring", "abort"}, fails("ABORTED", "PEER_ABORTED", true)},
      {{"transferring", "peer_abort"}, fails("PEER_ABORTED", "", true)},
      {{"transferring", "deadline"}, fails("DEADLINE", "DEADLINE", true)},
      {{"offered", "chunk"}, fails("OUT_OF_ORDER", "OUT_OF_ORDER", true)},
      {{"offered", "prefix_chunk"}, fails("OUT_OF_ORDER", "OUT_OF_ORDER", true)},
      {{"offered", "last_chunk"}, fails("OUT_OF_ORDER", "OUT_OF_ORDER", true)},
      {{"offered", "gap"}, fails("OUT_OF_ORDER", "OUT_OF_ORDER", true)},
      {{"offered", "taken_complete"}, success},
      {{"offered", "abort"}, fails("ABORTED", "PEER_ABORTED", true)},
      {{"offered", "peer_abort"}, fails("PEER_ABORTED", "", true)},
      {{"offered", "deadline"}, fails("DEADLINE", "DEADLINE", true)},
      {{"dummy", "last_chunk"}, "event SUCCESS drained"},
      {{"dummy", "abort"}, fails("ABORTED", "", false)},
      {{"dummy", "peer_abort"}, fails("PEER_ABORTED", "", false)},
      {{"dummy", "deadline"}, fails("DEADLINE", "", false)},
  };
  for (const auto& [row, expected] : rows) {
    ASSERT_TRUE(states.contains(row.first) && events.contains(row.second)) << row.second;
  }
  for (const auto& [state, reach] : states) {
    for (const auto& [event, happen] : events) {
      if (state == "new" && event != "chunk") continue;  // the core opens or holds at once
      SCOPED_TRACE(absl::StrCat(state, " + ", event));
      MakeRoom();
      reach();
      actions_.Take();
      const bool was_terminal = room_->terminal();
      happen();
      const auto row = rows.find({state, event});
      EXPECT_EQ(actions_.Take(), row == rows.end() ? "" : row->second);
      if (was_terminal) {
        EXPECT_EQ(room_->state(), state == "success" ? RoomState::kSuccess : RoomState::kFailed);
      }
      if (room_->terminal()) {
        EXPECT_EQ(room_->Gauges().seals, 0);
        EXPECT_EQ(room_->Gauges().chunks_held, 0);
        EXPECT_EQ(room_->NextTimer(), MonotonicTime::InfiniteFuture());
      }
    }
  }
}

TEST_F(SendRoomTest, OpenBeforeOrAfterTheGrantIsAlike) {
  Open();
  EXPECT_EQ(actions_.Take(), "event BOOTSTRAPPING");
  GetGrant();
  EXPECT_EQ(actions_.Take(), "event WAITING_FOR_INPUT; prefix 2+4");
  EXPECT_EQ(room_->key().attempt, Attempt(1));
  MakeRoom();
  Hold();
  EXPECT_EQ(actions_.Take(), "");
  Open();
  EXPECT_EQ(actions_.Take(), "event WAITING_FOR_INPUT; prefix 2+4");
}

TEST_F(SendRoomTest, ChunksBeforeTheGrantAreHeldAndThenOffered) {
  Open();
  Chunk(1);
  Chunk(2);
  EXPECT_EQ(room_->Gauges().chunks_held, 2);
  actions_.Take();
  GetGrant();
  EXPECT_EQ(actions_.Take(),
            "event WAITING_FOR_INPUT; prefix 2+4; seal; event TRANSFERRING; offer 0+1");
  EXPECT_EQ(room_->Gauges().chunks_held, 0);
}

TEST_F(SendRoomTest, I9_TooManyHeldChunksFailTheRoom) {
  Open();
  Chunk(1), Chunk(1);
  actions_.Take();
  Chunk(1);
  EXPECT_EQ(actions_.Take(), "event FAILED LIMIT_REACHED; event FAILED LIMIT_REACHED drained");
}

TEST_F(SendRoomTest, OfferNamesThePagesBehindThePrefix) {
  Open(), GetGrant();
  room_->OnChunk({.runs = {{20, 1}, {30, 2}}, .first_position = 0}, now_);
  EXPECT_EQ(actions_.Take(),
            "event BOOTSTRAPPING; event WAITING_FOR_INPUT; prefix 2+4; seal; event TRANSFERRING; "
            "offer 0+1");
}

struct BadChunk {
  std::string name;
  SendChunk chunk;
  Reason reason;
};

TEST_F(SendRoomTest, ChunksAgainstTheRulesFailTheRoomOnBothSides) {
  const std::vector<BadChunk> table = {
      {"negative position", {.runs = {{0, 1}}, .first_position = -1}, Reason::kInvalidField},
      {"first behind the prefix",
       {.runs = {{0, 1}}, .first_position = 3},
       Reason::kPageCountMismatch},
      {"first far behind",
       {.runs = {{0, 1}}, .first_position = INT64_MAX},
       Reason::kPageCountMismatch},
      {"surplus", {.runs = {{0, 7}}, .first_position = 0}, Reason::kPageCountMismatch},
      {"too few at last",
       {.runs = {{0, 5}}, .last = true, .aux_slot = 0, .states = {{0, {1}}}},
       Reason::kPageCountMismatch},
      {"page outside", {.runs = {{kPages, 1}}}, Reason::kBadPages},
      {"page twice", {.runs = {{3, 2}, {4, 1}}}, Reason::kBadPages},
      {"negative page", {.runs = {{-1, 1}}}, Reason::kBadPages},
      {"empty run", {.runs = {{1, 0}}}, Reason::kBadPages},
      {"endless run", {.runs = {{1, INT64_MAX}}}, Reason::kBadPages},
      {"aux without last", {.runs = {{0, 1}}, .aux_slot = 0}, Reason::kInvalidField},
      {"states without last", {.runs = {{0, 1}}, .states = {{0, {1}}}}, Reason::kInvalidField},
      {"aux outside",
       {.runs = {{0, 6}}, .last = true, .aux_slot = kSlots, .states = {{0, {1}}}},
       Reason::kInvalidField},
      {"no aux",
       {.runs = {{0, 6}}, .last = true, .aux_slot = -1, .states = {{0, {1}}}},
       Reason::kStateMismatch},
      {"no states", {.runs = {{0, 6}}, .last = true, .aux_slot = 0}, Reason::kStateMismatch},
      {"more states",
       {.runs = {{0, 6}}, .last = true, .aux_slot = 0, .states = {{0, {1, 2}}}},
       Reason::kStateMismatch},
      {"state outside",
       {.runs = {{0, 6}}, .last = true, .aux_slot = 0, .states = {{0, {kStateItems}}}},
       Reason::kInvalidField},
      {"state twice",
       {.runs = {{0, 6}}, .last = true, .aux_slot = 0, .states = {{0, {1, 1}}}},
       Reason::kInvalidField},
      {"component unknown",
       {.runs = {{0, 6}}, .last = true, .aux_slot = 0, .states = {{1, {1}}}},
       Reason::kInvalidField},
  };
  for (const BadChunk& row : table) {
    SCOPED_TRACE(row.name);
    MakeRoom();
    Open(), GetGrant();
    actions_.Take();
    room_->OnChunk(row.chunk, now_);
    EXPECT_THAT(room_->error(), HasReason(row.reason));
    const std::string name(ReasonName(row.reason));
    EXPECT_EQ(actions_.Take(), absl::StrCat("event FAILED ", name, "; failed ", name,
                                            "; event FAILED ", name, " drained"));
  }
}

TEST_F(SendRoomTest, MismatchNamesGrantedAndSent) {
  Open(), GetGrant();
  Chunk(5, true);
  EXPECT_THAT(MetadataOf(room_->error()),
              ElementsAre(std::pair("granted", "4"), std::pair("sent", "3")));
}

TEST_F(SendRoomTest, I12_APageIsNotSentTwiceInOneRoom) {
  Open(), GetGrant();
  room_->OnChunk({.runs = {{5, 3}}, .first_position = 0}, now_);
  room_->OnChunk({.runs = {{7, 1}}, .first_position = 3}, now_);
  EXPECT_THAT(room_->error(), HasReason(Reason::kBadPages));
}

TEST_F(SendRoomTest, FullPrefixHitSendsAnEmptyLastOffer) {
  Grant grant = TestGrant();
  grant.runs.clear();
  for (const int64_t position : {0, 2}) {
    MakeRoom();
    Open(), GetGrant(grant);
    position_ = position;
    actions_.Take();
    Chunk(0, true);
    EXPECT_EQ(actions_.Take(), "seal; event TRANSFERRING; offer 0+0 last; completed 0/8");
    EXPECT_THAT(Take(0, 8, true), IsOk());
    EXPECT_EQ(actions_.Take(), "break; event SUCCESS drained");
  }
}

TEST_F(SendRoomTest, TakenThatDoesNotFitIsRefusedAndChangesNothing) {
  Open(), GetGrant(), Chunk(4);
  EXPECT_THAT(Take(1, 32), IsOk());
  actions_.Take();
  EXPECT_THAT(Take(3, 64), HasReason(Reason::kInvalidField));
  EXPECT_THAT(Take(0, 32), HasReason(Reason::kInvalidField));
  EXPECT_THAT(Take(2, 16), HasReason(Reason::kInvalidField));
  EXPECT_EQ(actions_.Take(), "");
  EXPECT_EQ(room_->View(now_).pages_done, 1);
}

TEST_F(SendRoomTest, I2_CompleteWithOtherTotalsIsNoSuccess) {
  for (const auto& [pages, bytes] : {std::pair(3, kAllBytes), std::pair(4, kAllBytes - 1)}) {
    MakeRoom();
    Open(), GetGrant(), Chunk(6, true);
    EXPECT_THAT(Take(pages, bytes, true), IsOk());
    EXPECT_EQ(room_->state(), RoomState::kFailed);
  }
}

TEST_F(SendRoomTest, WithoutASealTheRoomFails) {
  actions_.seals_left = false;
  Open(), GetGrant();
  actions_.Take();
  Chunk(3);
  EXPECT_EQ(actions_.Take(),
            "seal; event FAILED LIMIT_REACHED; failed LIMIT_REACHED; event FAILED LIMIT_REACHED "
            "drained");
}

TEST_F(SendRoomTest, DeadlineIsTheEarlierOfBothSides) {
  Open();
  EXPECT_EQ(room_->NextTimer(), now_ + absl::Seconds(30));
  GetGrant();
  EXPECT_EQ(room_->NextTimer(), now_ + absl::Seconds(30));
  MakeRoom();
  Hold();
  EXPECT_EQ(room_->NextTimer(), now_ + absl::Seconds(20));  // the orphan's bound
  Open();
  EXPECT_EQ(room_->NextTimer(), now_ + absl::Seconds(30));
}

TEST_F(SendRoomTest, DummyGrantSendsNothingAndSucceedsAtTheLastChunk) {
  Open();
  GetGrant({.room = {RoomId(9), Attempt(1)}, .dummy = true, .timeout = absl::Seconds(9)});
  Chunk(3);
  actions_.Take();
  Chunk(3, true);
  EXPECT_EQ(actions_.Take(), "completed 0/0; event SUCCESS drained");
}

TEST_F(SendRoomTest, DummySendCannotServeAGrantWithPages) {
  Open(true);
  actions_.Take();
  GetGrant();
  EXPECT_EQ(room_->state(), RoomState::kFailed);
  EXPECT_THAT(room_->error(), HasReason(Reason::kPageCountMismatch));
}

TEST_F(SendRoomTest, CapabilitiesMustBeEqualOrBothEmpty) {
  room_->Open({.timeout = absl::Seconds(1), .capability = "abc"}, now_);
  EXPECT_TRUE(room_->SendCapabilityIs("abc"));
  for (const char* other : {"", "ab", "abd", "abcd"}) EXPECT_FALSE(room_->SendCapabilityIs(other));
}

}  // namespace
}  // namespace pageferry::agent
