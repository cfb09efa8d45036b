#include "services/bootstrap/port_table.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/bootstrap/table_records.h"

namespace pageferry::bootstrap {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

PortTable::Options Options() {
  return {
      .epoch_floor = Epoch(1000), .lease_floor = LeaseId(500), .version_floor = TableVersion(9000)};
}

std::vector<RankCoordinate> AllRanks() {
  std::vector<RankCoordinate> ranks;
  const ParallelShape shape = MakeClaim().traits.shape;
  for (int64_t i = 0; i < RankCount(shape); ++i) {
    ranks.push_back(ToCoordinate(RankIndex(i), shape));
  }
  return ranks;
}

/// Registers all 16 ranks; answers their grants in rank order.
std::vector<Grant> Fill(PortTable& table, MonotonicTime now) {
  std::vector<Grant> grants;
  for (const RankCoordinate& rank : AllRanks()) {
    const auto grant = table.Register(MakeClaim(rank), now);
    EXPECT_THAT(grant, IsOk());
    grants.push_back(*grant);
  }
  return grants;
}

TEST(PortTableTest, I10_ReadyIsTheSetOfDistinctLiveCells) {
  PortTable table(Options());
  const auto ranks = AllRanks();
  int64_t missing = 16;
  for (const RankCoordinate& rank : ranks) {
    const absl::Status before = table.Resolve(Key(), ranks).status();
    if (missing == 16) {
      EXPECT_THAT(before, StatusIs(absl::StatusCode::kNotFound, Reason::kEngineNotFound));
    } else {
      EXPECT_THAT(before, StatusIs(absl::StatusCode::kUnavailable, Reason::kEngineNotReady));
      EXPECT_THAT(MetadataOf(before)["missing"], testing::HasSubstr(ToString(ranks.back())));
    }
    for (int again = 0; again < 16; ++again) {
      ASSERT_OK_AND_ASSIGN(const Grant grant, table.Register(MakeClaim(rank), At(0)));
      EXPECT_EQ(grant.missing_count, missing - 1);
    }
    --missing;
    EXPECT_EQ(table.IsReady(Key()), missing == 0);
  }
  ASSERT_OK_AND_ASSIGN(const auto views, table.Resolve(Key(), ranks));
  ASSERT_THAT(views, SizeIs(16));
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(views[i].rank.value(), static_cast<int64_t>(i));
}

TEST(PortTableTest, ResolveNamesACoordinateOutsideTheShapeBeforeItSaysNotReady) {
  PortTable table(Options());
  ASSERT_THAT(table.Register(MakeClaim(), At(0)), IsOk());
  EXPECT_THAT(table.Resolve(Key(), {{RankCoordinate{.tp = 4}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField));
}

TEST(PortTableTest, ALeaseLivesUntilJustBeforeItsExpiry) {
  PortTable table(Options());
  ASSERT_OK_AND_ASSIGN(const Grant grant, table.Register(MakeClaim(), At(0)));
  EXPECT_EQ(table.NextExpiry(), At(3));
  EXPECT_EQ(table.KeepAlive(grant.lease, At(3) - absl::Nanoseconds(1)).fate, LeaseFate::kRenewed);
  const MonotonicTime expiry = At(6) - absl::Nanoseconds(1);
  EXPECT_EQ(table.NextExpiry(), expiry);
  EXPECT_EQ(table.KeepAlive(grant.lease, expiry).fate, LeaseFate::kNotFound);
  EXPECT_FALSE(table.Deregister(grant.lease, expiry));
  EXPECT_FALSE(table.ExpireUpTo(expiry, 100));
  EXPECT_EQ(table.View(Key(), false)->live_count, 0);
  EXPECT_EQ(table.counts().expiries, 1);
}

TEST(PortTableTest, AClaimAtTheVeryExpiryIsANewLeaseWithTheSameEpoch) {
  PortTable table(Options());
  ASSERT_OK_AND_ASSIGN(const Grant first, table.Register(MakeClaim(), At(0)));
  ASSERT_OK_AND_ASSIGN(const Grant renewed, table.Register(MakeClaim(), At(2)));
  EXPECT_EQ(renewed.lease, first.lease);
  EXPECT_EQ(renewed.version, first.version);
  ASSERT_OK_AND_ASSIGN(const Grant late, table.Register(MakeClaim(), At(5)));
  EXPECT_GT(late.lease, first.lease);
  EXPECT_EQ(late.epoch, first.epoch);
  EXPECT_GT(late.version, first.version);
  EXPECT_EQ(table.KeepAlive(first.lease, At(5)).fate, LeaseFate::kNotFound);
  EXPECT_EQ(table.KeepAlive(late.lease, At(5)).fate, LeaseFate::kRenewed);
}

TEST(PortTableTest, LeasesThatExpireTogetherAllGoAndReadyTurnsOnce) {
  PortTable table(Options());
  Fill(table, At(0));
  EXPECT_THAT(table.TakeChanges(), SizeIs(1));
  EXPECT_TRUE(table.ExpireUpTo(At(3), 15));
  EXPECT_EQ(table.View(Key(), true)->live_count, 1);
  EXPECT_FALSE(table.ExpireUpTo(At(3), 15));
  const auto changes = table.TakeChanges();
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_TRUE(changes[0].engine_level);
  EXPECT_FALSE(changes[0].removed);
  EXPECT_EQ(table.View(Key(), true)->missing_count, 16);
}

TEST(PortTableTest, TheOlderLeaseLearnsThatItIsSuperseded) {
  PortTable table(Options());
  ASSERT_OK_AND_ASSIGN(const Grant old, table.Register(MakeClaim({}, 1), At(0)));
  ASSERT_OK_AND_ASSIGN(const Grant young, table.Register(MakeClaim({}, 2), At(1)));
  EXPECT_GT(young.epoch, old.epoch);
  EXPECT_EQ(young.missing_count, 15);
  EXPECT_EQ(table.KeepAlive(old.lease, At(1)).fate, LeaseFate::kSuperseded);
  EXPECT_FALSE(table.Deregister(old.lease, At(1)));
  EXPECT_EQ(table.KeepAlive(young.lease, At(1)).fate, LeaseFate::kRenewed);
  EXPECT_THAT(table.Register(MakeClaim({}, 1), At(1)), HasReason(Reason::kSuperseded));
  // Also while the younger one's lease has lapsed, and when it gave up its cell.
  table.ExpireUpTo(At(10), 100);
  EXPECT_EQ(table.KeepAlive(old.lease, At(10)).fate, LeaseFate::kSuperseded);
  EXPECT_THAT(table.Register(MakeClaim({}, 1), At(10)), HasReason(Reason::kSuperseded));
  EXPECT_EQ(table.counts().supersedes, 1);
}

TEST(PortTableTest, NoMoreThanTwoLeasesOfACellAreRemembered) {
  PortTable table(Options());
  for (int64_t start = 1; start <= 100; ++start) {
    ASSERT_OK_AND_ASSIGN(const Grant grant, table.Register(MakeClaim({}, start), At(0)));
    if (start % 3 == 0) {
      table.Deregister(grant.lease, At(0));
      ASSERT_THAT(table.Register(MakeClaim({}, start), At(0)), IsOk());
    }
  }
  EXPECT_LE(table.counts().remembered_leases, 2);
  EXPECT_EQ(table.counts().leases, 1);
  table.ExpireUpTo(At(3), 100);
  table.ExpireUpTo(At(1000), 100);
  EXPECT_EQ(table.counts().remembered_leases, 0);
  EXPECT_EQ(table.counts().cells, 0);
}

TEST(PortTableTest, AnotherShapeWaitsUntilTheLastLeaseHasEnded) {
  PortTable table(Options());
  ASSERT_OK_AND_ASSIGN(const Grant first, table.Register(MakeClaim(), At(0)));
  Claim other = MakeClaim({}, 2);
  other.traits.shape.tp = 8;
  EXPECT_THAT(table.Register(other, At(1)),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kShapeMismatch));
  EXPECT_TRUE(table.Deregister(first.lease, At(1)));
  table.TakeChanges();
  ASSERT_OK_AND_ASSIGN(const Grant second, table.Register(other, At(1)));
  EXPECT_GT(second.epoch, first.epoch);
  EXPECT_EQ(second.missing_count, 31);
  EXPECT_TRUE(table.TakeChanges()[0].engine_level);
  // The first life brings its epoch, but cannot have it any more.
  table.Deregister(second.lease, At(2));
  ASSERT_OK_AND_ASSIGN(const Grant back,
                       table.Register(MakeClaim({}, 1, first.epoch.value()), At(2)));
  EXPECT_GT(back.epoch, second.epoch);
}

TEST(PortTableTest, AnEngineIsRemovedSomeTimeAfterItsLastLease) {
  PortTable table(Options());
  ASSERT_OK_AND_ASSIGN(const Grant grant, table.Register(MakeClaim(), At(0)));
  table.ExpireUpTo(At(3), 100);
  table.TakeChanges();
  EXPECT_EQ(table.NextExpiry(), At(603));
  table.ExpireUpTo(At(602), 100);
  EXPECT_NE(table.View(Key(), false), nullptr);
  EXPECT_THAT(table.TakeChanges(), IsEmpty());
  const TableVersion before = table.version();
  table.ExpireUpTo(At(603), 100);
  EXPECT_EQ(table.View(Key(), false), nullptr);
  const auto changes = table.TakeChanges();
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_TRUE(changes[0].removed);
  EXPECT_GT(table.version(), before);
  EXPECT_EQ(table.NextExpiry(), MonotonicTime::InfiniteFuture());
  EXPECT_EQ(table.KeepAlive(grant.lease, At(603)).fate, LeaseFate::kNotFound);
  // Its epochs are not forgotten: a newcomer's is higher, and one life keeps what it has.
  EXPECT_EQ(table.Register(MakeClaim({}, 1, grant.epoch.value()), At(700))->epoch, grant.epoch);
  EXPECT_GT(table.Register(MakeClaim({.tp = 1}, 2), At(700))->epoch, grant.epoch);
}

TEST(PortTableTest, AnEngineThatComesBackIsNotRemoved) {
  PortTable table(Options());
  ASSERT_THAT(table.Register(MakeClaim(), At(0)), IsOk());
  table.ExpireUpTo(At(3), 100);
  Claim claim = MakeClaim();
  claim.ttl = absl::Minutes(10);
  ASSERT_THAT(table.Register(claim, At(602)), IsOk());
  table.ExpireUpTo(At(603), 100);
  EXPECT_EQ(table.View(Key(), false)->live_count, 1);
}

TEST(PortTableTest, ASupersededLifeIsForgottenWithItsEngineButGetsAHigherEpoch) {
  PortTable table(Options());
  ASSERT_OK_AND_ASSIGN(const Grant old, table.Register(MakeClaim({}, 1), At(0)));
  ASSERT_OK_AND_ASSIGN(const Grant young, table.Register(MakeClaim({}, 2), At(1)));
  table.ExpireUpTo(At(1000), 100);
  table.ExpireUpTo(At(2000), 100);
  ASSERT_OK_AND_ASSIGN(const Grant back,
                       table.Register(MakeClaim({}, 1, old.epoch.value()), At(2000)));
  EXPECT_GT(back.epoch, young.epoch);
}

TEST(PortTableTest, BoundsRefuseOrDropWhatIsIdleForLongest) {
  PortTable::Options options = Options();
  options.max_engines = 2;
  options.max_cells = 3;
  PortTable table(options);
  const auto claim = [](const std::string& engine, int64_t tp = 0) {
    Claim made = MakeClaim({.tp = tp});
    made.key = Key(engine);
    return made;
  };
  ASSERT_OK_AND_ASSIGN(const Grant a, table.Register(claim("a"), At(0)));
  ASSERT_THAT(table.Register(claim("b"), At(0)), IsOk());
  EXPECT_THAT(table.Register(claim("c"), At(0)),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitReached));
  ASSERT_THAT(table.Register(claim("b", 1), At(0)), IsOk());
  EXPECT_THAT(table.Register(claim("b", 2), At(0)), HasReason(Reason::kLimitReached));
  ASSERT_THAT(table.Register(claim("b", 1), At(0)), IsOk());
  table.Deregister(a.lease, At(1));
  ASSERT_THAT(table.Register(claim("c"), At(1)), IsOk());
  EXPECT_EQ(table.View(Key("a"), false), nullptr);
  EXPECT_EQ(table.counts().cells, 3);
  EXPECT_EQ(table.counts().engines_not_ready, 2);
}

TEST(PortTableTest, ChangesAreOncePerEngineAndTellWhatKind) {
  PortTable table(Options());
  ASSERT_THAT(table.Register(MakeClaim(), At(0)), IsOk());
  EXPECT_TRUE(table.TakeChanges()[0].engine_level);
  ASSERT_THAT(table.Register(MakeClaim({.tp = 1}), At(0)), IsOk());
  ASSERT_THAT(table.Register(MakeClaim({.tp = 2}), At(0)), IsOk());
  const auto changes = table.TakeChanges();
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_FALSE(changes[0].engine_level);
  ASSERT_THAT(table.Register(MakeClaim({.tp = 2}), At(1)), IsOk());
  EXPECT_FALSE(table.has_changes());
}

TEST(PortTableTest, ListsByNamespaceAndNamePageByPage) {
  PortTable table(Options());
  for (const char* name : {"b/x", "a/z", "b/a", "c/a", "b/m"}) {
    Claim claim = MakeClaim();
    claim.key = {NamespaceName(std::string(name, 1)), EngineId(std::string(name + 2))};
    ASSERT_THAT(table.Register(claim, At(0)), IsOk());
  }
  const auto names = [](const PortTable::Page& page) {
    std::string text;
    for (const auto& engine : page.engines) {
      absl::StrAppend(&text, engine->key.name_space.value(), "/", engine->key.engine.value(), " ");
    }
    return text;
  };
  const auto all = table.List(std::nullopt, {}, 100, false, 100);
  EXPECT_EQ(names(all), "a/z b/a b/m b/x c/a ");
  EXPECT_FALSE(all.next);
  const NamespaceName b("b");
  const auto first = table.List(b, {b, {}}, 2, true, 100);
  EXPECT_EQ(names(first), "b/a b/m ");
  EXPECT_THAT(first.engines[0]->ranks, SizeIs(1));
  ASSERT_TRUE(first.next);
  const auto second = table.List(b, *first.next, 2, true, 100);
  EXPECT_EQ(names(second), "b/x ");
  EXPECT_FALSE(second.next);
  EXPECT_EQ(names(table.List(b, {b, {}}, 100, true, 0)), "b/a ");
}

}  // namespace
}  // namespace pageferry::bootstrap
