#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/bootstrap/change_index.h"
#include "services/bootstrap/memory_store.h"
#include "services/bootstrap/wait_list.h"
#include "tests/fakes/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/bootstrap/table_records.h"

namespace pageferry::bootstrap {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ChangeIndexTest, AReaderCatchesUpFromAnyVersionToTheSameState) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  ChangeIndex index(TableVersion(100), /*max_removed=*/3);
  std::map<std::string, int64_t> state;  // engine -> version of its last change
  std::vector<std::pair<TableVersion, std::map<std::string, int64_t>>> history = {
      {TableVersion(100), {}}};
  for (int64_t version = 101; version < 600; ++version) {
    const std::string name = absl::StrCat(random() % 12);
    const bool removed = state.contains(name) && random() % 3 == 0;
    index.Apply(TableVersion(version), {{.key = Key(name), .removed = removed}});
    if (removed) {
      state.erase(name);
    } else {
      state[name] = version;
    }
    history.emplace_back(TableVersion(version), state);
  }
  int resumable = 0;
  for (auto& [since, replica] : history) {
    if (!index.CanResume(since)) continue;
    ++resumable;
    index.VisitSince(since, /*engine_level=*/false, [&](const EngineKey& key, bool removed) {
      if (removed) {
        replica.erase(key.engine.value());
      } else {
        replica[key.engine.value()] = state[key.engine.value()];
      }
    });
    EXPECT_EQ(replica, state) << "since " << since;
  }
  EXPECT_GT(resumable, 1);
  EXPECT_FALSE(index.CanResume(TableVersion(99)));
  EXPECT_FALSE(index.CanResume(TableVersion(100)));
}

TEST(ChangeIndexTest, EngineLevelChangesAreKeptApart) {
  ChangeIndex index(TableVersion(1), 10);
  const auto seen = [&](int64_t since, bool level) {
    std::string text;
    index.VisitSince(TableVersion(since), level, [&](const EngineKey& key, bool removed) {
      absl::StrAppend(&text, removed ? "-" : "", key.engine.value(), " ");
    });
    return text;
  };
  index.Apply(TableVersion(5), {{.key = Key("a"), .engine_level = true}});
  index.Apply(TableVersion(7), {{.key = Key("b"), .engine_level = true}, {.key = Key("a")}});
  EXPECT_EQ(seen(1, false), "a b ");
  EXPECT_EQ(seen(5, true), "b ");
  EXPECT_EQ(seen(5, false), "a b ");
  EXPECT_EQ(seen(7, false), "");
  index.Apply(TableVersion(9), {{.key = Key("a"), .removed = true}});
  EXPECT_EQ(seen(7, true), "-a ");
  index.Apply(TableVersion(10), {{.key = Key("a"), .engine_level = true}});
  EXPECT_EQ(seen(7, true), "a ");
}

TEST(WaitListTest, EachWaitComesOutOnce) {
  WaitList waits;
  const auto rooms = [](std::vector<RoomId> ids) {
    return WaitList::Wait{.key = Key(), .rooms = std::move(ids)};
  };
  waits.Add(WaitId(1), {.key = Key()});
  waits.Add(WaitId(2), {.key = Key("other")});
  waits.Add(WaitId(3), rooms({RoomId(7), RoomId(8), RoomId(9)}));
  waits.Add(WaitId(4), rooms({RoomId(7)}));
  EXPECT_EQ(waits.TakeReady(Key()).size(), 1);
  EXPECT_EQ(waits.TakeReady(Key()).size(), 0);
  std::set<RoomId> placed = {RoomId(7), RoomId(8)};
  const auto is_placed = [&](RoomId room) { return placed.contains(room); };
  EXPECT_EQ(waits.TakePlaced(Key(), RoomId(7), is_placed).size(), 1);  // 4; 3 waits for 9 now
  EXPECT_EQ(waits.TakePlaced(Key(), RoomId(8), is_placed).size(), 0);
  EXPECT_GT(waits.rooms(), 0);
  EXPECT_EQ(waits.TakePlaced(Key("other"), RoomId(9), is_placed).size(), 0);
  EXPECT_EQ(waits.TakePlaced(Key(), RoomId(9), is_placed).size(), 1);
  EXPECT_EQ(waits.rooms(), 0);
  EXPECT_TRUE(waits.Take(WaitId(2)));
  EXPECT_FALSE(waits.Take(WaitId(2)));
  EXPECT_EQ(waits.size(), 0);
}

class MemoryStoreTest : public testing::Test {
 protected:
  void Open(MemoryStore::Options options = {}) {
    store_.reset();
    store_.emplace(options, clock_, clock_, probe_);
    store_->SetListener([this](const TableUpdate& update) {
      EXPECT_GT(update.version, version_);
      version_ = update.version;
      for (const auto& change : update.changes) {
        absl::StrAppend(&told_, change.key.engine.value(), ":",
                        change.view == nullptr ? -1 : change.view->live_count, " ");
      }
    });
  }
  void SetUp() override { Open(); }

  absl::StatusOr<Grant> Register(const Claim& claim) {
    absl::StatusOr<Grant> result = absl::UnknownError("");
    store_->Register(claim, [&](absl::StatusOr<Grant> grant) { result = std::move(grant); });
    return result;
  }
  std::string Told() { return std::exchange(told_, ""); }

  FakeClock clock_;
  MetricRegistry registry_;
  BootstrapProbe probe_{registry_};
  std::optional<MemoryStore> store_;
  TableVersion version_;
  std::string told_;
};

TEST_F(MemoryStoreTest, ChangesAreToldTogetherAfterTheBatchDelay) {
  ASSERT_THAT(Register(MakeClaim()), IsOk());
  clock_.Advance(absl::Milliseconds(9));
  ASSERT_THAT(Register(MakeClaim({.tp = 1})), IsOk());
  EXPECT_EQ(Told(), "");
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(Told(), "engine:2 ");
  clock_.Advance(absl::Milliseconds(2999));
  EXPECT_EQ(Told(), "");
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(Told(), "engine:0 ");
  clock_.Advance(absl::Minutes(10) + absl::Milliseconds(10));
  EXPECT_EQ(Told(), "engine:-1 ");
  EXPECT_EQ(clock_.pending(), 0);
}

TEST_F(MemoryStoreTest, SyncComesAfterWhatWasAnsweredBeforeIt) {
  std::string order;
  store_->Sync([&] { order += "first"; });
  EXPECT_EQ(order, "first");
  ASSERT_THAT(Register(MakeClaim()), IsOk());
  store_->Sync([&] { order += " " + Told(); });
  EXPECT_EQ(order, "first");
  clock_.Advance(absl::ZeroDuration());
  EXPECT_EQ(order, "first engine:1 ");
  ASSERT_THAT(Register(MakeClaim({.tp = 1})), IsOk());
  store_->Sync([&] { order += "drained"; });
  store_->Drain();
  EXPECT_EQ(order, "first engine:1 drained");
}

TEST_F(MemoryStoreTest, EpochsLeasesAndVersionsOfALaterStoreAreHigher) {
  ASSERT_OK_AND_ASSIGN(const Grant first, Register(MakeClaim()));
  clock_.Advance(absl::Milliseconds(1));
  Open();
  ASSERT_OK_AND_ASSIGN(const Grant second, Register(MakeClaim({}, 2)));
  EXPECT_GT(second.epoch, first.epoch);
  EXPECT_GT(second.lease, first.lease);
  EXPECT_GT(second.version, first.version);
}

TEST_F(MemoryStoreTest, WaitsAreBoundedAndEndOnceByTimeCancellationOrDrain) {
  Open({.max_waiting = 3});
  std::vector<std::string> ends;
  const auto wait = [&](absl::Duration time) {
    return store_->ResolveRanks(
        Key(), {{}}, clock_.Now() + time, [&](absl::StatusOr<RanksAnswer> answer) {
          ends.emplace_back(absl::StatusCodeToString(answer.status().code()));
        });
  };
  wait(absl::Seconds(1));
  const WaitId second = wait(absl::Seconds(60));
  wait(absl::Seconds(60));
  EXPECT_THAT(ends, IsEmpty());
  wait(absl::Seconds(60));
  EXPECT_THAT(ends, ElementsAre("RESOURCE_EXHAUSTED"));
  clock_.Advance(absl::Seconds(1));
  store_->CancelWait(second);
  store_->CancelWait(second);
  store_->Drain();
  EXPECT_THAT(ends, ElementsAre("RESOURCE_EXHAUSTED", "UNAVAILABLE", "CANCELLED", "UNAVAILABLE"));
  EXPECT_EQ(wait(absl::Seconds(60)), WaitId());
  clock_.Advance(absl::Minutes(2));
  EXPECT_EQ(ends.size(), 5);
}

TEST_F(MemoryStoreTest, I9_RoomsThatAreWaitedForAreBoundedHoweverFewCallsThereAre) {
  Open({.max_rooms = 10});
  std::vector<std::string> ends;
  const auto wait = [&](int64_t first, int64_t count) {
    std::vector<RoomId> rooms;
    for (int64_t i = 0; i < count; ++i) rooms.emplace_back(first + i);
    return store_->LookupRooms(
        Key(), rooms, clock_.Now() + absl::Seconds(60),
        [&](const absl::StatusOr<std::vector<Placement>>& answer) {
          ends.emplace_back(absl::StatusCodeToString(answer.status().code()));
        });
  };
  const WaitId first = wait(0, 6);
  wait(100, 4);
  EXPECT_THAT(ends, IsEmpty());
  wait(200, 1);
  EXPECT_THAT(ends, ElementsAre("RESOURCE_EXHAUSTED"));
  store_->CancelWait(first);
  wait(300, 6);
  EXPECT_THAT(ends, ElementsAre("RESOURCE_EXHAUSTED", "CANCELLED"));
  wait(400, 1);
  EXPECT_EQ(ends.size(), 3);
  store_->Drain();
}

TEST_F(MemoryStoreTest, AStoppedProcessDoesNotTakeAllRanksForDead) {
  FakeClock late;  // runs tasks after the time has passed
  store_.reset();
  store_.emplace(MemoryStore::Options{}, clock_, late, probe_);
  store_->SetListener([this](const TableUpdate& update) {
    absl::StrAppend(&told_, update.changes[0].view->live_count, " ");
  });
  ASSERT_OK_AND_ASSIGN(const Grant grant, Register(MakeClaim()));
  ASSERT_THAT(Register(MakeClaim({.tp = 1})), IsOk());
  clock_.Advance(absl::Milliseconds(10));
  late.Advance(absl::Milliseconds(10));
  EXPECT_EQ(Told(), "2 ");
  clock_.Advance(absl::Seconds(10));
  late.Advance(absl::Seconds(10));
  EXPECT_EQ(Told(), "");
  EXPECT_EQ(store_->stats().leases, 2);
  EXPECT_EQ(Register(MakeClaim())->epoch, grant.epoch);
  clock_.Advance(absl::Milliseconds(20));
  late.Advance(absl::Milliseconds(20));
  EXPECT_EQ(Told(), "2 ");
  for (const absl::Duration step : {absl::Seconds(2), absl::Milliseconds(20)}) {
    clock_.Advance(step);
    late.Advance(step);
  }
  EXPECT_EQ(Told(), "1 ");
  store_.reset();
}

TEST_F(MemoryStoreTest, ManyLeasesThatLapseAtOnceAllGoInBoundedSteps) {
  constexpr int kEngines = 3000;
  for (int engine = 0; engine < kEngines; ++engine) {
    Claim claim = MakeClaim();
    claim.key = Key(absl::StrCat(engine));
    ASSERT_THAT(Register(claim), IsOk());
  }
  EXPECT_EQ(store_->stats().leases, kEngines);
  const size_t tasks = clock_.Advance(absl::Seconds(3));
  EXPECT_GE(tasks, kEngines / 512);
  EXPECT_EQ(store_->stats().leases, 0);
  EXPECT_EQ(store_->stats().engines_not_ready, kEngines);
}

}  // namespace
}  // namespace pageferry::bootstrap
