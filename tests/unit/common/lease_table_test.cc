#include "libs/common/lease_table.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/ids.h"

namespace pageferry {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Optional;

constexpr size_t kAll = SIZE_MAX;

MonotonicTime At(int64_t seconds) {
  return MonotonicTime::FromNanoseconds(seconds * 1'000'000'000);
}

TEST(LeaseTableTest, LivesUntilJustBeforeItsExpiry) {
  LeaseTable<std::string> leases;
  EXPECT_EQ(leases.NextExpiry(), MonotonicTime::InfiniteFuture());
  EXPECT_EQ(leases.Grant("a", absl::Seconds(3), At(10)), At(13));
  EXPECT_EQ(leases.NextExpiry(), At(13));
  const MonotonicTime before = At(13) - absl::Nanoseconds(1);
  EXPECT_THAT(leases.ExpiryOf("a", before), Optional(At(13)));
  EXPECT_THAT(leases.ExpireUpTo(before, kAll), IsEmpty());
  EXPECT_EQ(leases.ExpiryOf("a", At(13)), std::nullopt);
  EXPECT_EQ(leases.Renew("a", At(13)), std::nullopt);
  EXPECT_THAT(leases.ExpireUpTo(At(13), kAll), ElementsAre("a"));
  EXPECT_THAT(leases.ExpireUpTo(At(13), kAll), IsEmpty());
  EXPECT_EQ(leases.size(), 0U);
}

TEST(LeaseTableTest, RenewProlongsByTheGrantedTtlAndNeverShortens) {
  LeaseTable<std::string> leases;
  leases.Grant("a", absl::Seconds(3), At(10));
  EXPECT_THAT(leases.Renew("a", At(12)), Optional(At(15)));
  EXPECT_THAT(leases.Renew("a", At(11)), Optional(At(15)));
  EXPECT_EQ(leases.Renew("b", At(11)), std::nullopt);
  leases.Grant("a", absl::Seconds(1), At(12));
  EXPECT_EQ(leases.NextExpiry(), At(13));
}

TEST(LeaseTableTest, RevokedLeasesAreNotReported) {
  LeaseTable<std::string> leases;
  leases.Grant("a", absl::Seconds(1), At(0));
  leases.Grant("b", absl::Seconds(1), At(0));
  EXPECT_TRUE(leases.Revoke("a"));
  EXPECT_FALSE(leases.Revoke("a"));
  EXPECT_THAT(leases.ExpireUpTo(At(5), kAll), ElementsAre("b"));
}

TEST(LeaseTableTest, GrantAfterExpiryStartsAnewUnreported) {
  LeaseTable<std::string> leases;
  leases.Grant("a", absl::Seconds(1), At(0));
  leases.Grant("a", absl::Seconds(1), At(5));
  EXPECT_THAT(leases.ExpireUpTo(At(5), kAll), IsEmpty());
  EXPECT_THAT(leases.ExpireUpTo(At(6), kAll), ElementsAre("a"));
}

TEST(LeaseTableTest, EqualTimesInOrderOfSettingAndBoundedSteps) {
  LeaseTable<std::string> leases;
  for (const char* const key : {"d", "b", "a", "c"}) leases.Grant(key, absl::Seconds(1), At(0));
  leases.Renew("b", At(0));  // already until then: keeps its place
  leases.Grant("d", absl::Seconds(1), At(0));
  EXPECT_THAT(leases.ExpireUpTo(At(1), 3), ElementsAre("b", "a", "c"));
  EXPECT_THAT(leases.ExpireUpTo(At(1), 3), ElementsAre("d"));
}

TEST(LeaseTableTest, OddTtls) {
  LeaseTable<std::string> leases;
  leases.Grant("never", absl::InfiniteDuration(), At(0));
  leases.Grant("now", absl::ZeroDuration(), At(0));
  leases.Grant("past", -absl::Seconds(1), At(0));
  EXPECT_THAT(leases.ExpireUpTo(At(0), kAll), ElementsAre("past", "now"));
  EXPECT_EQ(leases.NextExpiry(), MonotonicTime::InfiniteFuture());
}

// A sorted list of (expiry, order) is the oracle.
TEST(LeaseTableTest, AgreesWithAnOracleOnRandomSteps) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    LeaseTable<int> leases;
    struct Entry {
      MonotonicTime expiry;
      int64_t order;
      absl::Duration ttl;
    };
    std::map<int, Entry> oracle;
    int64_t order = 0;
    MonotonicTime now = At(1);
    for (int step = 0; step < 2000; ++step) {
      const int key = static_cast<int>(random() % 40);
      const auto entry = oracle.find(key);
      switch (random() % 5) {
        case 0:
        case 1: {
          const absl::Duration ttl = absl::Seconds(1 + static_cast<int>(random() % 6));
          EXPECT_EQ(leases.Grant(key, ttl, now), now + ttl);
          oracle[key] = {now + ttl, order++, ttl};
          break;
        }
        case 2: {
          const bool alive = entry != oracle.end() && entry->second.expiry > now;
          EXPECT_EQ(leases.Renew(key, now).has_value(), alive);
          if (alive && now + entry->second.ttl > entry->second.expiry) {
            entry->second.expiry = now + entry->second.ttl;
            entry->second.order = order++;
          }
          break;
        }
        case 3:
          EXPECT_EQ(leases.Revoke(key), oracle.erase(key) == 1);
          break;
        default: {
          now += absl::Seconds(random() % 2);
          const size_t max = random() % 4;
          std::vector<std::pair<std::pair<MonotonicTime, int64_t>, int>> due;
          for (const auto& [k, e] : oracle) {
            if (e.expiry <= now) due.push_back({{e.expiry, e.order}, k});
          }
          std::ranges::sort(due);
          if (due.size() > max) due.resize(max);
          std::vector<int> expected;
          for (const auto& [when, k] : due) {
            expected.push_back(k);
            oracle.erase(k);
          }
          ASSERT_EQ(leases.ExpireUpTo(now, max), expected);
        }
      }
      ASSERT_EQ(leases.size(), oracle.size());
    }
  }
}

TEST(LeaseTableTest, AMillionLeases) {
  LeaseTable<int64_t> leases;
  for (int64_t i = 0; i < 1'000'000; ++i) {
    leases.Grant(i, absl::Milliseconds((i * 7919) % 10'007), At(0));
  }
  for (int64_t i = 0; i < 1'000'000; i += 3) leases.Renew(i, At(0) + absl::Nanoseconds(1));
  size_t expired = 0;
  while (leases.NextExpiry() < MonotonicTime::InfiniteFuture()) {
    expired += leases.ExpireUpTo(At(100), 1000).size();
  }
  EXPECT_EQ(expired, 1'000'000U);
}

}  // namespace
}  // namespace pageferry
