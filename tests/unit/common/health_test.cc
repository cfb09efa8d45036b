#include "libs/common/health.h"

#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pageferry {
namespace {

using testing::Optional;

TEST(HealthTest, StatesByName) {
  HealthRegistry health;
  EXPECT_EQ(health.Get("x"), std::nullopt);
  health.Set("x", false);
  EXPECT_THAT(health.Get("x"), Optional(false));
  health.Set("x", true);
  EXPECT_THAT(health.Get("x"), Optional(true));
  EXPECT_EQ(health.Get(""), std::nullopt);
}

TEST(HealthTest, WakesOnChangesOnly) {
  HealthRegistry health;
  int wakes = 0;
  const int64_t watch = health.Watch([&] {
    ++wakes;
    (void)health.Get("x");  // no lock is held
  });
  health.Set("x", true);
  health.Set("x", true);
  EXPECT_EQ(wakes, 1);
  health.Set("x", false);
  EXPECT_EQ(wakes, 2);
  health.Unwatch(watch);
  health.Unwatch(watch);
  health.Set("x", true);
  EXPECT_EQ(wakes, 2);
}

TEST(HealthTest, DrainIsForGood) {
  HealthRegistry health;
  health.Set("", true);
  health.Set("x", true);
  health.SetAllNotServing();
  health.Set("x", true);
  health.Set("new", true);
  EXPECT_THAT(health.Get(""), Optional(false));
  EXPECT_THAT(health.Get("x"), Optional(false));
  EXPECT_EQ(health.Get("new"), std::nullopt);
  EXPECT_FALSE(health.ended());
  int wakes = 0;
  health.Watch([&] { ++wakes; });
  health.End();
  EXPECT_TRUE(health.ended());
  EXPECT_EQ(wakes, 1);
}

}  // namespace
}  // namespace pageferry
