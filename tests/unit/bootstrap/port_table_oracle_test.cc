#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "services/bootstrap/port_table.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/bootstrap/table_records.h"

namespace pageferry::bootstrap {
namespace {

/// The same promises, kept by going through everything each time.
class NaiveTable {
 public:
  struct Lease {
    int engine;
    int64_t cell;
    int64_t life;
    MonotonicTime expiry;
    absl::Duration ttl;
    bool ended = false;
    bool superseded = false;
  };

  bool Lives(const Lease& lease, MonotonicTime now) const {
    return !lease.ended && now < lease.expiry;
  }
  std::set<int64_t> LiveCells(int engine, MonotonicTime now) const {
    std::set<int64_t> cells;
    for (const auto& [id, lease] : leases) {
      if (lease.engine == engine && Lives(lease, now)) cells.insert(lease.cell);
    }
    return cells;
  }

  std::map<LeaseId, Lease> leases;
  std::map<std::pair<int, int64_t>, int64_t> youngest;       // (engine, cell) -> life
  std::map<std::pair<int, int64_t>, int64_t> epoch_of_cell;  // highest given
  std::map<std::tuple<int, int64_t, int64_t>, int64_t> epoch_of_life;
};

class OracleTest : public testing::TestWithParam<int> {};

TEST_P(OracleTest, AgreesWithANaiveTable) {
  const uint64_t seed =
      GetParam() == 0 ? std::random_device()() : static_cast<uint64_t>(GetParam());
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  PortTable table({.engine_memory = absl::Hours(1000), .epoch_floor = Epoch(100)});
  NaiveTable naive;
  const ParallelShape shape{.dp = 1, .cp = 1, .tp = 2, .pp = 2};
  TableVersion version;
  double now = 0;
  for (int step = 0; step < 4000; ++step) {
    now += static_cast<double>(below(4)) / 2;  // often the same time
    if (below(3) == 0) table.ExpireUpTo(At(now), static_cast<size_t>(below(4)));
    const int engine = static_cast<int>(below(3));
    const int64_t rank = below(4);
    if (below(2) == 0) {
      Claim claim = MakeClaim(ToCoordinate(RankIndex(rank), shape), 1 + below(step / 200 + 1));
      const int64_t life = claim.incarnation.start_time_unix_nanos;
      claim.key = Key(absl::StrCat(engine));
      claim.traits.shape = shape;
      claim.ttl = absl::Seconds(1 + below(5));
      const auto grant = table.Register(claim, At(now));
      int64_t& youngest = naive.youngest[{engine, rank}];
      ASSERT_EQ(grant.ok(), life >= youngest) << "step " << step;
      if (!grant.ok()) continue;
      for (auto& [id, lease] : naive.leases) {
        if (lease.engine != engine || lease.cell != rank || lease.life == life) continue;
        lease.ended = true;
        lease.superseded = true;
      }
      youngest = life;
      const bool known = naive.leases.contains(grant->lease);
      if (known) {
        ASSERT_TRUE(naive.Lives(naive.leases[grant->lease], At(now))) << "step " << step;
      }
      naive.leases[grant->lease] = {engine, rank, life, At(now) + claim.ttl, claim.ttl};
      int64_t& highest = naive.epoch_of_cell[{engine, rank}];
      int64_t& own = naive.epoch_of_life[{engine, rank, life}];
      if (own == 0) {
        ASSERT_GT(grant->epoch.value(), highest) << "step " << step;
        own = highest = grant->epoch.value();
      }
      ASSERT_EQ(grant->epoch.value(), own) << "step " << step;
    } else if (!naive.leases.empty()) {
      auto entry = naive.leases.begin();
      std::advance(entry, below(naive.leases.size()));
      auto& [id, lease] = *entry;
      const bool lives = naive.Lives(lease, At(now));
      if (below(4) == 0) {
        ASSERT_EQ(table.Deregister(id, At(now)), lives) << "step " << step;
        lease.ended = true;
      } else {
        const Renewal renewal = table.KeepAlive(id, At(now));
        ASSERT_EQ(renewal.fate == LeaseFate::kRenewed, lives) << "step " << step;
        if (lives) lease.expiry = std::max(lease.expiry, At(now) + lease.ttl);
        if (renewal.fate == LeaseFate::kSuperseded) {
          ASSERT_TRUE(lease.superseded);
        }
      }
    }
    ASSERT_GE(table.version(), version);
    version = table.version();
    if (below(8) != 0) continue;
    while (table.ExpireUpTo(At(now), 3)) {
    }
    for (int e = 0; e < 3; ++e) {
      const auto live = naive.LiveCells(e, At(now));
      const auto view = table.View(Key(absl::StrCat(e)), true);
      ASSERT_EQ(view == nullptr ? 0 : view->live_count, static_cast<int64_t>(live.size()))
          << "step " << step;
      ASSERT_EQ(table.IsReady(Key(absl::StrCat(e))), live.size() == 4) << "step " << step;
      if (view == nullptr) continue;
      std::set<int64_t> seen;
      for (const RankView& r : view->ranks) {
        seen.insert(r.rank.value());
        ASSERT_EQ(r.epoch.value(), (naive.epoch_of_cell[{e, r.rank.value()}])) << "step " << step;
      }
      ASSERT_EQ(seen, live) << "step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, OracleTest, testing::Range(0, 6));

}  // namespace
}  // namespace pageferry::bootstrap
