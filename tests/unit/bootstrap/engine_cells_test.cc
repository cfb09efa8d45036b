#include "services/bootstrap/engine_cells.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/bootstrap/table_records.h"

namespace pageferry::bootstrap {
namespace {

constexpr Epoch kFloor(1000);
constexpr LeaseId kFirst(1);
constexpr LeaseId kFresh(50);
const RankIndex kRank(0);

enum class State { kAbsent, kLive, kLapsed };
enum class Event {
  kClaimSame,
  kClaimSameKnowingHigher,
  kClaimYounger,
  kClaimYoungerKnowingSame,
  kClaimYoungerKnowingHigher,
  kClaimOlder,
  kClaimOlderKnowingHigher,
  kEndLease,
  kEndOtherLease,
};

struct Expected {
  std::string result;  // "refused", "ended", "ignored", or epoch/lease/ended/forgotten
  bool live;
  int64_t epoch;    // of the holder afterwards, 0 where the cell is absent
  int64_t highest;  // of the cell afterwards
};

struct Row {
  State state;
  Event event;
  Expected expected;
};

// In `kLive` and `kLapsed` the life that started at 10 holds epoch 1001 and has or had lease 1.
// "Higher" is 2000.
const std::vector<Row>& Rows() {
  static const std::vector<Row> rows = {
      {State::kAbsent, Event::kClaimSame, {"1001/50/0/0", true, 1001, 1001}},
      {State::kAbsent, Event::kClaimSameKnowingHigher, {"2000/50/0/0", true, 2000, 2000}},
      {State::kAbsent, Event::kClaimYounger, {"1001/50/0/0", true, 1001, 1001}},
      {State::kAbsent, Event::kClaimYoungerKnowingSame, {"1001/50/0/0", true, 1001, 1001}},
      {State::kAbsent, Event::kClaimYoungerKnowingHigher, {"2000/50/0/0", true, 2000, 2000}},
      {State::kAbsent, Event::kClaimOlder, {"1001/50/0/0", true, 1001, 1001}},
      {State::kAbsent, Event::kClaimOlderKnowingHigher, {"2000/50/0/0", true, 2000, 2000}},
      {State::kAbsent, Event::kEndLease, {"ignored", false, 0, 0}},
      {State::kAbsent, Event::kEndOtherLease, {"ignored", false, 0, 0}},

      {State::kLive, Event::kClaimSame, {"1001/1/0/0", true, 1001, 1001}},
      {State::kLive, Event::kClaimSameKnowingHigher, {"2000/1/0/0", true, 2000, 2000}},
      {State::kLive, Event::kClaimYounger, {"1002/50/1/0", true, 1002, 1002}},
      {State::kLive, Event::kClaimYoungerKnowingSame, {"1002/50/1/0", true, 1002, 1002}},
      {State::kLive, Event::kClaimYoungerKnowingHigher, {"2000/50/1/0", true, 2000, 2000}},
      {State::kLive, Event::kClaimOlder, {"refused", true, 1001, 1001}},
      {State::kLive, Event::kClaimOlderKnowingHigher, {"refused", true, 1001, 2000}},
      {State::kLive, Event::kEndLease, {"ended", false, 1001, 1001}},
      {State::kLive, Event::kEndOtherLease, {"ignored", true, 1001, 1001}},

      {State::kLapsed, Event::kClaimSame, {"1001/50/0/1", true, 1001, 1001}},
      {State::kLapsed, Event::kClaimSameKnowingHigher, {"2000/50/0/1", true, 2000, 2000}},
      {State::kLapsed, Event::kClaimYounger, {"1002/50/0/0", true, 1002, 1002}},
      {State::kLapsed, Event::kClaimYoungerKnowingSame, {"1002/50/0/0", true, 1002, 1002}},
      {State::kLapsed, Event::kClaimYoungerKnowingHigher, {"2000/50/0/0", true, 2000, 2000}},
      {State::kLapsed, Event::kClaimOlder, {"refused", false, 1001, 1001}},
      {State::kLapsed, Event::kClaimOlderKnowingHigher, {"refused", false, 1001, 2000}},
      {State::kLapsed, Event::kEndLease, {"ignored", false, 1001, 1001}},
      {State::kLapsed, Event::kEndOtherLease, {"ignored", false, 1001, 1001}},
  };
  return rows;
}

Claim ClaimOf(Event event) {
  const int64_t start = event <= Event::kClaimSameKnowingHigher      ? 10
                        : event <= Event::kClaimYoungerKnowingHigher ? 11
                                                                     : 9;
  const bool higher = event == Event::kClaimSameKnowingHigher ||
                      event == Event::kClaimYoungerKnowingHigher ||
                      event == Event::kClaimOlderKnowingHigher;
  const bool same = event == Event::kClaimYoungerKnowingSame;
  return MakeClaim({}, start, higher ? 2000 : same ? 1001 : 0);
}

std::string Apply(EngineCells& cells, Event event) {
  if (event == Event::kEndLease) return cells.EndLease(kRank, kFirst) ? "ended" : "ignored";
  if (event == Event::kEndOtherLease) return cells.EndLease(kRank, kFresh) ? "ended" : "ignored";
  const auto claimed = cells.MakeClaim(ClaimOf(event), kFresh, kFloor);
  if (!claimed.ok()) {
    EXPECT_THAT(claimed, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kSuperseded));
    return "refused";
  }
  return absl::StrCat(claimed->epoch.value(), "/", claimed->lease.value(), "/",
                      claimed->ended.value(), "/", claimed->forgotten.value());
}

TEST(EngineCellsTest, EveryStateAndEvent) {
  ASSERT_EQ(Rows().size(), 3 * 9);
  for (const Row& row : Rows()) {
    SCOPED_TRACE(absl::StrCat("state ", static_cast<int>(row.state), " event ",
                              static_cast<int>(row.event)));
    EngineCells cells(MakeClaim().traits, {});
    if (row.state != State::kAbsent) {
      ASSERT_THAT(cells.MakeClaim(MakeClaim({}, 10), kFirst, kFloor), IsOk());
    }
    if (row.state == State::kLapsed) {
      ASSERT_TRUE(cells.EndLease(kRank, kFirst));
    }
    EXPECT_EQ(Apply(cells, row.event), row.expected.result);
    EXPECT_EQ(cells.live_count(), row.expected.live ? 1 : 0);
    EXPECT_EQ(cells.missing_count(), row.expected.live ? 15 : 16);
    const Cell* cell = cells.Find(kRank);
    ASSERT_EQ(cell != nullptr, row.expected.epoch != 0);
    if (cell == nullptr) continue;
    EXPECT_EQ(cell->live, row.expected.live);
    EXPECT_EQ(cell->epoch.value(), row.expected.epoch);
    EXPECT_EQ(cell->highest.value(), row.expected.highest);
    EXPECT_GE(cells.ToMemory().highest, cell->highest);
  }
}

TEST(EngineCellsTest, TheYoungerIsByStartThenNonceThenAgent) {
  const std::vector<Incarnation> ascending = {Life(1, 9, "z"), Life(2, 1, "z"), Life(2, 2, "a"),
                                              Life(2, 2, "b")};
  EngineCells cells(MakeClaim().traits, {});
  Epoch last;
  for (size_t i = 0; i < ascending.size(); ++i) {
    Claim claim = MakeClaim();
    claim.incarnation = ascending[i];
    ASSERT_OK_AND_ASSIGN(const auto claimed, cells.MakeClaim(claim, kFresh, kFloor));
    EXPECT_GT(claimed.epoch, last);
    last = claimed.epoch;
    for (size_t older = 0; older < i; ++older) {
      claim.incarnation = ascending[older];
      EXPECT_THAT(cells.MakeClaim(claim, kFresh, kFloor), HasReason(Reason::kSuperseded));
    }
  }
}

TEST(EngineCellsTest, TwoLivesThatBringTheSameEpochNeverHoldItBoth) {
  EngineCells cells(MakeClaim().traits, {});
  ASSERT_OK_AND_ASSIGN(const auto first, cells.MakeClaim(MakeClaim({}, 1, 7), kFirst, kFloor));
  EXPECT_EQ(first.epoch, Epoch(7));
  ASSERT_OK_AND_ASSIGN(const auto second, cells.MakeClaim(MakeClaim({}, 2, 7), kFresh, kFloor));
  EXPECT_EQ(second.epoch, Epoch(1001));
}

TEST(EngineCellsTest, AYoungerLifeKeepsTheHigherEpochThatItHadBeforeTheServiceForgot) {
  EngineCells cells(MakeClaim().traits, {});
  ASSERT_THAT(cells.MakeClaim(MakeClaim({}, 1, 7), kFirst, kFloor), IsOk());
  ASSERT_OK_AND_ASSIGN(const auto second, cells.MakeClaim(MakeClaim({}, 2, 8), kFresh, kFloor));
  EXPECT_EQ(second.epoch, Epoch(8));
}

TEST(EngineCellsTest, MemoryOfDroppedCellsFencesWhatIsBrought) {
  EngineCells cells(MakeClaim().traits, {.highest = Epoch(5000), .fence = Epoch(4000)});
  ASSERT_OK_AND_ASSIGN(const auto low, cells.MakeClaim(MakeClaim({}, 1, 4000), kFirst, kFloor));
  EXPECT_EQ(low.epoch, Epoch(5001));
  ASSERT_OK_AND_ASSIGN(const auto high,
                       cells.MakeClaim(MakeClaim({.tp = 1}, 1, 4001), kFresh, kFloor));
  EXPECT_EQ(high.epoch, Epoch(4001));
  EXPECT_EQ(cells.ToMemory().highest, Epoch(5001));
}

TEST(EngineCellsTest, TheLastEpochIsTheLast) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EngineCells cells(MakeClaim().traits, {});
  ASSERT_THAT(cells.MakeClaim(MakeClaim({}, 1, kMax), kFirst, kFloor), IsOk());
  EXPECT_THAT(cells.MakeClaim(MakeClaim({}, 2), kFresh, kFloor),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitReached));
  EXPECT_EQ(cells.Find(kRank)->holder, Life(1));
  EXPECT_EQ(cells.live_count(), 1);
}

TEST(EngineCellsTest, SixteenClaimsOfOneCellAreOneCell) {
  EngineCells cells(MakeClaim().traits, {});
  for (int i = 0; i < 16; ++i) ASSERT_THAT(cells.MakeClaim(MakeClaim(), kFirst, kFloor), IsOk());
  EXPECT_FALSE(cells.ready());
  EXPECT_EQ(cells.missing_count(), 15);
}

TEST(EngineCellsTest, MissingNamesTheGapsInRankOrder) {
  EngineCells cells(MakeClaim().traits, {});
  const RankCoordinate middle{.dp = 1};
  ASSERT_THAT(cells.MakeClaim(MakeClaim(middle), kFirst, kFloor), IsOk());
  EXPECT_EQ(cells.Missing(100).size(), 15);
  EXPECT_EQ(cells.Missing(3).size(), 3);
  EXPECT_EQ(cells.Missing(100)[0], RankCoordinate());
  EXPECT_EQ(cells.Missing(100)[8], (RankCoordinate{.dp = 1, .tp = 1}));
}

TEST(EngineCellsTest, AChangeIsWhatReadersSee) {
  EngineCells cells(MakeClaim().traits, {});
  EXPECT_TRUE(cells.MakeClaim(MakeClaim(), kFirst, kFloor)->changed);
  EXPECT_FALSE(cells.MakeClaim(MakeClaim(), kFresh, kFloor)->changed);
  Claim moved = MakeClaim();
  moved.info.endpoint.port = 7001;
  EXPECT_TRUE(cells.MakeClaim(moved, kFresh, kFloor)->changed);
  EXPECT_EQ(cells.Find(kRank)->info->endpoint.port, 7001);
}

using TraitsChange = void (*)(EngineTraits&);
constexpr std::pair<const char*, TraitsChange> kTraitsChanges[] = {
    {"shape.dp", [](EngineTraits& x) { x.shape.dp = 3; }},
    {"shape.cp", [](EngineTraits& x) { x.shape.cp = 3; }},
    {"shape.tp", [](EngineTraits& x) { x.shape.tp = 3; }},
    {"shape.pp", [](EngineTraits& x) { x.shape.pp = 3; }},
    {"role", [](EngineTraits& x) { x.role = Role::kDecode; }},
    {"dp_policy", [](EngineTraits& x) { x.dp_policy = DpPolicy::kDirectory; }},
    {"profile.page_tokens", [](EngineTraits& x) { x.profile.page_tokens = 3; }},
    {"profile.data_type", [](EngineTraits& x) { x.profile.data_type = 3; }},
    {"profile.layout", [](EngineTraits& x) { x.profile.layout = 3; }},
    {"profile.attention", [](EngineTraits& x) { x.profile.attention = 3; }},
    {"profile.total_kv_heads", [](EngineTraits& x) { x.profile.total_kv_heads = 3; }},
    {"profile.head_dim", [](EngineTraits& x) { x.profile.head_dim = 3; }},
    {"profile.model_fingerprint", [](EngineTraits& x) { x.profile.model_fingerprint = "x"; }},
    {"profile.layer_count", [](EngineTraits& x) { x.profile.layer_count = 3; }},
    {"profile.all_cp_ranks_send", [](EngineTraits& x) { x.profile.all_cp_ranks_send = true; }},
    {"profile.kv_shards", [](EngineTraits& x) { x.profile.kv_shards = 3; }},
    {"profile.decode_cp", [](EngineTraits& x) { x.profile.decode_cp = 3; }},
    {"profile.dsa_layer_split", [](EngineTraits& x) { x.profile.dsa_layer_split = true; }},
};

TEST(EngineCellsTest, EveryDifferenceOfTraitsIsNamed) {
  const EngineCells cells(MakeClaim().traits, {});
  EXPECT_THAT(cells.CheckTraits(MakeClaim().traits), IsOk());
  for (const auto& [field, change] : kTraitsChanges) {
    SCOPED_TRACE(field);
    EngineTraits other = MakeClaim().traits;
    change(other);
    const absl::Status status = cells.CheckTraits(other);
    const bool is_shape = std::string(field).starts_with("shape");
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 is_shape ? Reason::kShapeMismatch : Reason::kProfileMismatch));
    ErrorMetadata metadata = MetadataOf(status);
    EXPECT_EQ(metadata["field"], field);
    EXPECT_TRUE(metadata.contains("have") && metadata.contains("got"));
    EXPECT_NE(metadata["have"], metadata["got"]);
  }
}

}  // namespace
}  // namespace pageferry::bootstrap
