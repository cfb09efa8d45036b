// The agent's view of the bootstrap service: its lease, and the tables of engines.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "services/transfer-agent/engine_table.h"
#include "services/transfer-agent/engine_watch.h"
#include "services/transfer-agent/lease_keeper.h"
#include "services/transfer-agent/room_placer.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/transfer-agent/fake_bootstrap.h"
#include "tests/unit/transfer-agent/fake_loop.h"

namespace pageferry::agent {
namespace {

constexpr absl::Duration kTtl = absl::Seconds(3);
const Backoff::Options kBackoff{.initial = absl::Milliseconds(100), .max = absl::Seconds(1)};

class LeaseKeeperTest : public testing::Test, public LeaseKeeper::Listener {
 protected:
  void OnLeaseHeld(Epoch epoch) override { held_.push_back(epoch); }
  void OnLeaseLost(const absl::Status& why) override { lost_.push_back(why); }
  void OnSuperseded(const absl::Status& why) override { superseded_.push_back(why); }

  void Start() {
    Registration registration;
    registration.engine.engine_id = EngineId("e");
    registration.agent = AgentId("a");
    keeper_.Start(registration, [this](const absl::Status& status) { first_ = status; });
  }
  void Grant(int64_t lease = 5, int64_t epoch = 9) {
    bootstrap_.claim(Claim{.lease = LeaseId(lease), .epoch = Epoch(epoch), .ttl = kTtl});
  }

  FakeLoop loop_;
  FakeBootstrap bootstrap_;
  LeaseKeeper keeper_{loop_, bootstrap_, *this, kBackoff};
  std::optional<absl::Status> first_;
  std::vector<Epoch> held_;
  std::vector<absl::Status> lost_;
  std::vector<absl::Status> superseded_;
};

TEST_F(LeaseKeeperTest, RenewsEachThirdOfTheTtlOnOneStream) {
  Start();
  EXPECT_FALSE(first_.has_value());
  Grant();
  EXPECT_THAT(*first_, IsOk());
  EXPECT_THAT(held_, testing::ElementsAre(Epoch(9)));
  for (int i = 1; i <= 6; ++i) {
    loop_.Advance(kTtl / 3);
    ASSERT_EQ(bootstrap_.renewed.size(), i);
    bootstrap_.on_renewals({{.lease = LeaseId(5), .ttl = kTtl}});
  }
  EXPECT_EQ(bootstrap_.keep_alives, 1);
  EXPECT_TRUE(keeper_.live());
  bootstrap_.on_keep_alive_end(absl::UnavailableError("cut"));
  loop_.Advance(kTtl / 3);
  EXPECT_EQ(bootstrap_.keep_alives, 2);
  EXPECT_TRUE(keeper_.live());
}

TEST_F(LeaseKeeperTest, AnUnreachableServiceIsTriedAgainAndAnsweredAtOnce) {
  Start();
  bootstrap_.claim(absl::UnavailableError("refused"));
  ASSERT_TRUE(first_.has_value());
  EXPECT_THAT(*first_, StatusIs(absl::StatusCode::kUnavailable, Reason::kBootstrapUnreachable));
  EXPECT_EQ(keeper_.state(), LeaseKeeper::State::kClaiming);
  loop_.Advance(absl::Milliseconds(99));
  EXPECT_EQ(bootstrap_.registrations.size(), 1);
  loop_.Advance(absl::Milliseconds(101));
  EXPECT_EQ(bootstrap_.registrations.size(), 2);
  Grant();
  EXPECT_TRUE(keeper_.live());
}

TEST_F(LeaseKeeperTest, ARefusalIsAnsweredAndNotRepeated) {
  Start();
  bootstrap_.claim(MakeError(absl::StatusCode::kFailedPrecondition, Reason::kShapeMismatch, "no"));
  EXPECT_THAT(*first_, HasReason(Reason::kShapeMismatch));
  EXPECT_EQ(keeper_.state(), LeaseKeeper::State::kIdle);
  loop_.Advance(absl::Minutes(1));
  EXPECT_EQ(bootstrap_.registrations.size(), 1);
}

TEST_F(LeaseKeeperTest, ALostLeaseIsClaimedAgainWithTheEpochItHad) {
  Start();
  Grant();
  loop_.Advance(kTtl / 3);
  bootstrap_.on_renewals(
      {{.lease = LeaseId(5),
        .lost = MakeError(absl::StatusCode::kNotFound, Reason::kLeaseNotFound, "gone")}});
  EXPECT_FALSE(keeper_.live());
  EXPECT_THAT(lost_, testing::ElementsAre(HasReason(Reason::kLeaseNotFound)));
  loop_.Advance(absl::Milliseconds(200));
  ASSERT_EQ(bootstrap_.registrations.size(), 2);
  EXPECT_EQ(bootstrap_.registrations[1].last_epoch, Epoch(9));
  Grant(6, 9);
  EXPECT_TRUE(keeper_.live());
}

TEST_F(LeaseKeeperTest, ALeaseThatIsNotRenewedInTimeLapses) {
  Start();
  Grant();
  loop_.Advance(kTtl - absl::Milliseconds(1));
  EXPECT_TRUE(keeper_.live());
  loop_.Advance(absl::Milliseconds(1));
  EXPECT_FALSE(keeper_.live());
}

TEST_F(LeaseKeeperTest, SupersededIsForGood) {
  Start();
  Grant();
  loop_.Advance(kTtl / 3);
  bootstrap_.on_renewals(
      {{.lease = LeaseId(5),
        .lost = MakeError(absl::StatusCode::kFailedPrecondition, Reason::kSuperseded, "gone")}});
  EXPECT_EQ(superseded_.size(), 1);
  loop_.Advance(absl::Minutes(5));
  first_.reset();
  Start();
  loop_.Run();
  EXPECT_THAT(*first_, HasReason(Reason::kSuperseded));
  keeper_.Stop(absl::Seconds(1), [] {});
  EXPECT_EQ(bootstrap_.registrations.size(), 1);
  EXPECT_EQ(bootstrap_.deregistered.size(), 0);
}

TEST_F(LeaseKeeperTest, StopGivesTheCellUpAndDropsLateAnswers) {
  Start();
  auto late = std::move(bootstrap_.claim);
  Start();
  Grant();
  bool stopped = false;
  keeper_.Stop(absl::Seconds(1), [&] { stopped = true; });
  EXPECT_TRUE(stopped);
  EXPECT_THAT(bootstrap_.deregistered, testing::ElementsAre(LeaseId(5)));
  late(Claim{.lease = LeaseId(8), .epoch = Epoch(1), .ttl = kTtl});
  EXPECT_EQ(keeper_.state(), LeaseKeeper::State::kIdle);
}

EngineRecord RecordOf(const std::string& id, bool ready, int ranks) {
  EngineRecord record{.id = EngineId(id), .shape = {.tp = 2}, .ready = ready};
  for (int tp = 0; tp < ranks; ++tp) {
    record.ranks[{.tp = tp}] = {.agent = {AgentId("a"), Epoch(tp + 1)},
                                .endpoint = {.host = "h", .port = 1}};
  }
  return record;
}

TEST(EngineTableTest, SnapshotsReplaceAndChangesAdd) {
  EngineTable table;
  EXPECT_THAT(table.Apply({.version = TableVersion(4),
                           .what = TableSnapshot{.engines = {RecordOf("e", true, 2),
                                                             RecordOf("f", true, 2)}}}),
              testing::UnorderedElementsAre(EngineId("e"), EngineId("f")));
  EXPECT_EQ(table.version(), TableVersion(4));
  EXPECT_THAT(table.Apply({.version = TableVersion(5),
                           .what = TableChange{.engines = {RecordOf("e", false, 1)}}}),
              testing::ElementsAre(EngineId("e")));
  EXPECT_FALSE(table.Find(EngineId("e"))->ready);
  EXPECT_THAT(
      table.Apply({.version = TableVersion(6), .what = TableChange{.removed = {EngineId("f")}}}),
      testing::ElementsAre(EngineId("f")));
  EXPECT_EQ(table.Find(EngineId("f")), nullptr);
  EXPECT_THAT(table.Apply({.version = TableVersion(7), .what = TableProgress{}}),
              testing::IsEmpty());
  EXPECT_EQ(table.version(), TableVersion(7));
  EXPECT_THAT(table.Apply({.version = TableVersion(2), .what = TableSnapshot{}}),
              testing::ElementsAre(EngineId("e")));
}

TEST(EngineTableTest, NothingReadsAsGoneWhileTheServiceWarmsUp) {
  EngineTable table;
  table.Apply(
      {.version = TableVersion(9), .what = TableSnapshot{.engines = {RecordOf("e", true, 2)}}});
  EXPECT_THAT(table.Apply({.version = TableVersion(1), .what = TableSnapshot{.warming_up = true}}),
              testing::IsEmpty());
  table.Apply(
      {.version = TableVersion(2), .what = TableChange{.engines = {RecordOf("e", false, 1)}}});
  EXPECT_TRUE(table.Find(EngineId("e"))->ready);
  EXPECT_EQ(table.Find(EngineId("e"))->ranks.size(), 2);
  table.Apply(
      {.version = TableVersion(3), .what = TableSnapshot{.engines = {RecordOf("e", false, 1)}}});
  EXPECT_FALSE(table.Find(EngineId("e"))->ready);
  EXPECT_EQ(table.Find(EngineId("e"))->ranks.size(), 1);
}

class EngineWatchTest : public testing::Test {
 protected:
  EngineWatchTest() {
    watch_.Bind([this](const EngineId& engine) { changed_.push_back(engine); });
    watch_.SetNamespace(NamespaceName("default"));
  }
  void Snapshot(int64_t version, std::vector<EngineRecord> engines) {
    bootstrap_.watches.back().on_event(
        {.version = TableVersion(version), .what = TableSnapshot{.engines = std::move(engines)}});
  }

  FakeLoop loop_;
  FakeBootstrap bootstrap_;
  EngineWatch watch_{loop_, bootstrap_, kBackoff};
  std::vector<EngineId> changed_;
};

TEST_F(EngineWatchTest, OneStreamServesAllAndTheTableOutlivesIt) {
  EXPECT_EQ(watch_.Ask(EngineId("e")), nullptr);
  EXPECT_EQ(watch_.Ask(EngineId("f")), nullptr);
  loop_.Advance(absl::Milliseconds(10));
  ASSERT_EQ(bootstrap_.watches.size(), 1);
  EXPECT_EQ(bootstrap_.watches[0].engines.size(), 2);
  EXPECT_THAT(watch_.Reachable(EngineId("f")), HasReason(Reason::kBootstrapUnreachable));
  Snapshot(5, {RecordOf("e", true, 2)});
  EXPECT_NE(watch_.Ask(EngineId("e")), nullptr);
  EXPECT_THAT(watch_.Reachable(EngineId("f")), IsOk());

  bootstrap_.watches[0].on_end(absl::UnavailableError("cut"));
  EXPECT_NE(watch_.Ask(EngineId("e")), nullptr);
  EXPECT_THAT(watch_.Reachable(EngineId("f")), HasReason(Reason::kBootstrapUnreachable));
  loop_.Advance(absl::Milliseconds(200));
  ASSERT_EQ(bootstrap_.watches.size(), 2);
  EXPECT_EQ(bootstrap_.watches[1].resume, TableVersion(5));
  bootstrap_.watches[1].on_end(
      MakeError(absl::StatusCode::kOutOfRange, Reason::kCompacted, "too old"));
  loop_.Advance(absl::Milliseconds(400));
  ASSERT_EQ(bootstrap_.watches.size(), 3);
  EXPECT_EQ(bootstrap_.watches[2].resume, TableVersion(0));
}

TEST_F(EngineWatchTest, AStreamCutDuringTheWarmUpAsksForAllAgain) {
  watch_.Ask(EngineId("e"));
  loop_.Advance(absl::Milliseconds(10));
  ASSERT_EQ(bootstrap_.watches.size(), 1);
  bootstrap_.watches[0].on_event(
      {.version = TableVersion(5),
       .what = TableSnapshot{.engines = {RecordOf("e", true, 2)}, .warming_up = true}});
  bootstrap_.watches[0].on_end(absl::UnavailableError("cut"));
  loop_.Advance(absl::Milliseconds(200));
  ASSERT_EQ(bootstrap_.watches.size(), 2);
  EXPECT_EQ(bootstrap_.watches[1].resume, TableVersion(0));
}

TEST_F(EngineWatchTest, IsBounded) {
  for (size_t i = 0; i < EngineWatch::kMaxEngines + 10; ++i) {
    watch_.Ask(EngineId("e" + std::to_string(i)));
  }
  loop_.Advance(absl::Milliseconds(10));
  EXPECT_EQ(bootstrap_.watches.back().engines.size(), EngineWatch::kMaxEngines);
}

TEST(RoomPlacerTest, BatchesWhatComesWhileACallIsInFlight) {
  FakeLoop loop;
  FakeBootstrap bootstrap;
  RoomPlacer placer(loop, bootstrap, kBackoff);
  placer.SetEngine(NamespaceName("default"), EngineId("e"), 3);
  placer.Place(RoomId(1));
  placer.Place(RoomId(2));
  placer.Place(RoomId(3));
  ASSERT_EQ(bootstrap.placed.size(), 1);
  bootstrap.on_placed(absl::OkStatus());
  ASSERT_EQ(bootstrap.placed.size(), 2);
  EXPECT_THAT(bootstrap.placed[1],
              testing::ElementsAre(std::pair(RoomId(2), 3), std::pair(RoomId(3), 3)));
  bootstrap.on_placed(absl::UnavailableError("away"));
  placer.Place(RoomId(4));
  EXPECT_EQ(bootstrap.placed.size(), 2);
  loop.Advance(absl::Milliseconds(200));
  ASSERT_EQ(bootstrap.placed.size(), 3);
  EXPECT_EQ(bootstrap.placed[2].size(), 3);
}

}  // namespace
}  // namespace pageferry::agent
