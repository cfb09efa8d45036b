#include "services/transfer-agent/transfer_plan.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "services/transfer-agent/engines_match.h"
#include "services/transfer-agent/page_set.h"
#include "services/transfer-agent/tombstones.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/transfer-agent/core_testing.h"

namespace pageferry::agent {
namespace {

using testing::ElementsAre;

TEST(TransferPlan, BuffersPairByNameAndNotByPlace) {
  const KvProfile source = TestEngine(Role::kPrefill).profile;
  const KvProfile target = TestEngine(Role::kDecode).profile;
  ASSERT_OK_AND_ASSIGN(const PairPlan plan, MakePairPlan(source, target));
  ASSERT_EQ(plan.pages->size(), target.entries.size());
  for (size_t i = 0; i < target.entries.size(); ++i) {
    const transport::EntryPair& pair = (*plan.pages)[i];
    EXPECT_EQ(pair.target_offset, target.entries[i].pages.offset);
    for (const Entry& entry : source.entries) {
      if (entry.layer == target.entries[i].layer && entry.kind == target.entries[i].kind) {
        EXPECT_EQ(pair.source_offset, entry.pages.offset);
      }
    }
  }
}

TEST(TransferPlan, StateComponentsPairByKindWhateverTheirOrder) {
  KvProfile source = TestEngine(Role::kPrefill).profile;
  KvProfile target = source;
  StateComponent other = source.states[0];
  other.kind = StateKind::kSwa;
  source.states.push_back(other);
  target.states.insert(target.states.begin(), other);
  ASSERT_OK_AND_ASSIGN(const PairPlan plan, MakePairPlan(source, target));
  EXPECT_THAT(plan.source_component, ElementsAre(1, 0));
  const std::vector<StateIndices> from = {{0, {4, 5, 9}}, {1, {}}};
  const std::vector<StateIndices> to = {{1, {7, 8, 2}}};
  EXPECT_THAT(CheckExtrasPair(plan, {-1, from}, {-1, to}), IsOk());
  std::vector<transport::Step> steps;
  AppendExtraSteps(plan, {-1, from}, {-1, to}, steps);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_THAT(steps[0].runs, ElementsAre(RunPair{4, 7, 2}, RunPair{9, 2, 1}));
  const auto mismatch = StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStateMismatch);
  EXPECT_THAT(CheckExtrasPair(plan, {-1, {}}, {-1, to}), mismatch);
  EXPECT_THAT(CheckExtrasPair(plan, {-1, from}, {0, to}), mismatch);
  EXPECT_THAT(CheckExtrasPair(plan, {0, from}, {-1, to}), mismatch);
}

TEST(TransferPlan, SizesAreTheSmallestBounds) {
  KvProfile profile = TestEngine(Role::kPrefill).profile;
  profile.entries[1].pages.item_count = 5;
  profile.states[0].entries[1].items.item_count = 3;
  const ProfileSizes sizes = SizesOf(profile);
  EXPECT_EQ(sizes.pages, 5);
  EXPECT_EQ(sizes.page_bytes, ByteCount(32));
  EXPECT_EQ(sizes.aux_slots, kSlots);
  EXPECT_EQ(sizes.states[0].items, 3);
  EXPECT_EQ(BytesOf(sizes, 2, 0, std::vector<StateIndices>{{0, {1, 2}}}), ByteCount(64 + 4 + 8));
  EXPECT_EQ(SizesOf({}).pages, 0);
  EXPECT_THAT(CheckAuxSlot(0, SizesOf({})), HasReason(Reason::kInvalidField));
}

TEST(EnginesMatch, EqualEnginesMeetAndDifferencesAreNamed) {
  using Change = std::function<void(EngineInfo&)>;
  struct Row {
    std::string field;
    Change change;
  };
  const std::vector<Row> table = {
      {"namespace", [](EngineInfo& e) { e.name_space = NamespaceName("other"); }},
      {"role of prefill", [](EngineInfo& e) { e.role = Role::kDecode; }},
      {"coordinate", [](EngineInfo& e) { e.coordinate.tp = 1; }},
      {"model_fingerprint", [](EngineInfo& e) { e.profile.model_fingerprint = "b"; }},
      {"page_tokens", [](EngineInfo& e) { e.profile.page_tokens = 32; }},
      {"data_type", [](EngineInfo& e) { e.profile.data_type = DataType::kBfloat16; }},
      {"layout", [](EngineInfo& e) { e.profile.layout = KvLayout::kHnd; }},
      {"attention", [](EngineInfo& e) { e.profile.attention = AttentionKind::kMla; }},
      {"total_kv_heads", [](EngineInfo& e) { e.profile.total_kv_heads = 6; }},
      {"rank_kv_heads", [](EngineInfo& e) { e.profile.rank_kv_heads = 1; }},
      {"head_dim", [](EngineInfo& e) { e.profile.head_dim = 128; }},
      {"entry layer 1 kind 2 part 1", [](EngineInfo& e) { e.profile.entries.pop_back(); }},
      {"entry layer 2 kind 2 part 1", [](EngineInfo& e) { e.profile.entries[3].layer = 2; }},
      {"entry layer 0 kind 1 part 1",
       [](EngineInfo& e) { e.profile.entries[1] = e.profile.entries[0]; }},
      {"item size of entry layer 0 kind 1 part 1",
       [](EngineInfo& e) { e.profile.entries[0].pages.item_size = ByteCount(16); }},
      {"aux first_token", [](EngineInfo& e) { e.profile.aux.clear(); }},
      {"item size of aux first_token",
       [](EngineInfo& e) { e.profile.aux[0].slots.item_size = ByteCount(8); }},
      {"state kind 1 part 1", [](EngineInfo& e) { e.profile.states.clear(); }},
      {"state layer 1", [](EngineInfo& e) { e.profile.states[0].entries.pop_back(); }},
      {"state page_tokens", [](EngineInfo& e) { e.profile.states[0].page_tokens = 4; }},
  };
  EngineInfo prefill = TestEngine(Role::kPrefill);
  EngineInfo decode = TestEngine(Role::kDecode);
  for (EngineInfo* engine : {&prefill, &decode}) {
    engine->shape = {.dp = 2, .tp = 2};
    engine->profile.model_fingerprint = "a";
  }
  decode.coordinate.dp = 1;  // the DP ranks may differ
  EXPECT_THAT(EnginesMatch(prefill, decode), IsOk());
  for (const Row& row : table) {
    SCOPED_TRACE(row.field);
    EngineInfo changed = prefill;
    row.change(changed);
    const absl::Status status = EnginesMatch(changed, decode);
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kEnginesIncompatible));
    const ErrorMetadata metadata = MetadataOf(status);
    const auto field = metadata.find("field");
    ASSERT_NE(field, metadata.end());
    // A layer that moved is missing under its old name or extra under its new one.
    if (row.field != "entry layer 2 kind 2 part 1") {
      EXPECT_EQ(field->second, row.field);
    }
    EXPECT_TRUE(metadata.contains("have") && metadata.contains("got"));
  }
  prefill.profile.model_fingerprint.clear();
  EXPECT_THAT(EnginesMatch(prefill, decode), IsOk());
}

TEST(EnginesMatch, OtherShapesAreUnsupportedAndNamed) {
  const EngineInfo decode = TestEngine(Role::kDecode);
  for (const ParallelShape& shape :
       {ParallelShape{.cp = 2}, ParallelShape{.tp = 2}, ParallelShape{.dp = 2, .pp = 2}}) {
    EngineInfo prefill = TestEngine(Role::kPrefill);
    prefill.shape = shape;
    const absl::Status status = EnginesMatch(prefill, decode);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented, Reason::kUnsupported));
    EXPECT_EQ(MetadataOf(status).at("prefill_shape"), ToString(shape));
    EXPECT_EQ(MetadataOf(status).at("decode_shape"), ToString(decode.shape));
  }
}

TEST(EnginesMatch, OneEngineMayHaveMoreDpRanks) {
  const EngineInfo decode = TestEngine(Role::kDecode);
  EngineInfo prefill = TestEngine(Role::kPrefill);
  prefill.shape.dp = 3;
  prefill.coordinate.dp = 2;
  EXPECT_THAT(EnginesMatch(prefill, decode), IsOk());
  const RankQuery query{.room = RoomId(5), .shape = decode.shape};
  ASSERT_OK_AND_ASSIGN(const PrefillRank rank,
                       PrefillCoordinateFor(query, prefill.shape, DpPolicy::kRoomModulo));
  EXPECT_EQ(rank.coordinate.dp, 2);
}

TEST(EnginesMatch, PrefillRankOfARoom) {
  const ParallelShape shape{.dp = 4, .cp = 1, .tp = 2, .pp = 2};
  RankQuery query{.room = RoomId(11), .shape = shape, .coordinate = {.dp = 1, .tp = 1, .pp = 1}};
  ASSERT_OK_AND_ASSIGN(PrefillRank rank, PrefillCoordinateFor(query, shape, DpPolicy::kRoomModulo));
  EXPECT_EQ(rank.coordinate, (RankCoordinate{.dp = 3, .tp = 1, .pp = 1}));
  EXPECT_EQ(rank.dp_source, DpSource::kRoomModulo);
  ASSERT_OK_AND_ASSIGN(rank, PrefillCoordinateFor(query, shape, DpPolicy::kDirectory));
  EXPECT_EQ(rank.dp_source, DpSource::kDirectory);
  query.dp_rank = 2;
  ASSERT_OK_AND_ASSIGN(rank, PrefillCoordinateFor(query, shape, DpPolicy::kDirectory));
  EXPECT_EQ(rank.coordinate.dp, 2);
  EXPECT_EQ(rank.dp_source, DpSource::kHint);
  for (const int32_t bad : {-1, 4}) {
    query.dp_rank = bad;
    EXPECT_THAT(PrefillCoordinateFor(query, shape, DpPolicy::kRoomModulo),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField));
  }
  query.dp_rank.reset();
  EXPECT_THAT(PrefillCoordinateFor(query, {.tp = 2}, DpPolicy::kRoomModulo),
              HasReason(Reason::kUnsupported));
  query.shape = {};
  query.coordinate = {};
  ASSERT_OK_AND_ASSIGN(rank, PrefillCoordinateFor(query, {}, DpPolicy::kDirectory));
  EXPECT_EQ(rank.dp_source, DpSource::kOnlyOne);
}

TEST(TransferPlan, ElidedEntriesAreLeftOut) {
  KvProfile source = TestEngine(Role::kPrefill).profile;
  KvProfile target = TestEngine(Role::kDecode).profile;
  const auto elide = [](StateEntry& entry) {
    entry.items.item_size = ByteCount(0);
    entry.items.item_count = 0;
  };
  elide(source.states[0].entries[1]);
  EXPECT_THAT(MakePairPlan(source, target), HasReason(Reason::kEnginesIncompatible));
  elide(target.states[0].entries[1]);
  ASSERT_OK_AND_ASSIGN(const PairPlan plan, MakePairPlan(source, target));
  EXPECT_EQ(plan.states[0]->size(), 1u);
  ProfileSizes sizes = SizesOf(target);
  EXPECT_EQ(sizes.states[0].items, kStateItems);
  EXPECT_EQ(sizes.states[0].item_bytes, ByteCount(2));
  EXPECT_THAT(CheckStates({{{0, {kStateItems - 1}}}}, sizes), IsOk());

  // A rank that has no layer with states takes any index, since nothing is moved.
  elide(target.states[0].entries[0]);
  sizes = SizesOf(target);
  EXPECT_EQ(sizes.states[0].item_bytes, ByteCount(0));
  EXPECT_THAT(CheckStates({{{0, {12'345}}}}, sizes), IsOk());
}

TEST(PageSet, I12_NoPageTwice) {
  PageSet set;
  EXPECT_THAT(set.Add({{5, 2}, {1, 1}}, 20), IsOk());
  EXPECT_THAT(set.Add({{7, 3}}, 20), IsOk());
  const auto bad = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadPages);
  for (const PageRun run : {PageRun{5, 1}, PageRun{9, 1}, PageRun{0, 2}, PageRun{4, 9},
                            PageRun{1, 1}, PageRun{19, 2}, PageRun{-1, 1}, PageRun{2, 0}}) {
    EXPECT_THAT(set.Add({{12, 1}, run}, 20), bad) << run;  // and 12 is not kept
  }
  EXPECT_THAT(set.Add({{12, 1}, {2, 3}, {10, 2}, {0, 1}}, 20), IsOk());
  EXPECT_THAT(set.Add({{13, 7}}, 20), IsOk());
  for (int64_t page = 0; page < 20; ++page) EXPECT_THAT(set.Add({{page, 1}}, 20), bad);
}

TEST(PageSet, TakesOutWhatWasAdded) {
  std::mt19937_64 dice(3);
  PageSet set;
  std::vector<std::vector<PageRun>> held;
  std::vector<bool> taken(200);
  for (int step = 0; step < 3000; ++step) {
    if (!held.empty() && dice() % 2 == 0) {
      const size_t at = dice() % held.size();
      set.Remove(held[at]);
      for (const PageRun& run : held[at]) {
        for (int64_t page = run.first; page < run.first + run.count; ++page) taken[page] = false;
      }
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
      continue;
    }
    std::vector<PageRun> runs;
    bool is_free = true;
    for (auto first = static_cast<int64_t>(dice() % 40); first < 190 && runs.size() < 3;) {
      const auto count = static_cast<int64_t>(1 + dice() % 8);
      runs.push_back({first, count});
      for (int64_t page = first; page < first + count; ++page) is_free = is_free && !taken[page];
      first += count + static_cast<int64_t>(dice() % 60);
    }
    ASSERT_EQ(set.Add(runs, 200).ok(), is_free) << step;
    if (!is_free) continue;
    for (const PageRun& run : runs) {
      for (int64_t page = run.first; page < run.first + run.count; ++page) taken[page] = true;
    }
    held.push_back(std::move(runs));
  }
  for (const std::vector<PageRun>& runs : held) set.Remove(runs);
  EXPECT_TRUE(set.empty());
}

TEST(Tombstones, I9_OneKeyAgainAndAgainStaysBounded) {
  Tombstones tombstones(4, absl::Seconds(10));
  MonotonicTime now = TestStart();
  const auto key = [](int64_t room, int64_t attempt) {
    return RoomKey{RoomId(room), Attempt(attempt)};
  };
  for (int n = 0; n < 1000; ++n) tombstones.Add(key(1, 0), {}, now);
  EXPECT_EQ(tombstones.size(), 1);
  now += absl::Seconds(5);
  tombstones.Rename(key(1, 0), key(1, 3), now);
  EXPECT_EQ(tombstones.Find(key(1, 0)), nullptr);
  EXPECT_EQ(tombstones.HighestAttempt(RoomId(1)), Attempt(3));
  EXPECT_EQ(tombstones.HighestAttempt(RoomId(2)), std::nullopt);
  EXPECT_EQ(tombstones.HighestAttempt(RoomId(0)), std::nullopt);
  now += absl::Seconds(5);
  tombstones.Expire(now, 1000);
  EXPECT_EQ(tombstones.size(), 1);  // its time began with the rename
  now += absl::Seconds(5);
  EXPECT_EQ(tombstones.NextExpiry(), now);
  tombstones.Expire(now, 1000);
  EXPECT_EQ(tombstones.size(), 0);
}

}  // namespace
}  // namespace pageferry::agent
