#include "libs/common/metrics.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pageferry {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(MetricsTest, FamiliesShowEverySeriesFromTheStart) {
  MetricRegistry registry;
  const auto aborts = registry.AddCounterFamily(
      {"pageferry_agent_room_abort_total",
       "Rooms that were aborted.",
       {{"reason", {"peer", "engine"}}, {"side", {"prefill", "decode"}}}});
  aborts.At({"peer", "decode"}).Add();
  aborts.At({"peer", "decode"}).Add(2);
  aborts.At({"peer", "decode"}).Add(-5);
  const std::string text = registry.Serialize();
  EXPECT_THAT(text,
              HasSubstr("pageferry_agent_room_abort_total{reason=\"peer\",side=\"decode\"} 3\n"));
  EXPECT_THAT(
      text, HasSubstr("pageferry_agent_room_abort_total{reason=\"engine\",side=\"prefill\"} 0\n"));
  EXPECT_EQ(aborts.At({"peer", "decode"}).value(), 3);
}

TEST(MetricsTest, UnknownLabelValuesCountNowhere) {
  MetricRegistry registry;
  const auto family =
      registry.AddCounterFamily({"pageferry_x_total", "X.", {{"kind", {"a", "b"}}}});
  family.At({"room-17"}).Add();
  family.At({}).Add();
  family.At({"a", "b"}).Add();
  EXPECT_THAT(registry.Serialize(), Not(HasSubstr("room-17")));
  EXPECT_EQ(family.At({"a"}).value(), 0);
}

TEST(MetricsTest, BadNamesAndClashesYieldHandlesThatCountNothing) {
  MetricRegistry registry;
  registry.AddCounter("pageferry_no_suffix", "X.").Add();
  registry.AddGauge("pageferry_gauge_total", "X.").Set(1);
  registry.AddGauge("Bad-Name", "X.").Set(1);
  registry.AddGauge("pageferry_no_help", "").Set(1);
  EXPECT_EQ(registry.Serialize(), "");
  registry.AddGauge("pageferry_depth", "X.").Set(1);
  registry.AddHistogram("pageferry_depth", "X.", {1}).Observe(1);
  EXPECT_THAT(registry.Serialize(), Not(HasSubstr("histogram")));
  Counter().Add();
  Gauge().Set(1);
  Histogram().Observe(1);
  EXPECT_EQ(MetricFamily<Gauge>().At({"x"}).value(), 0);
}

TEST(MetricsTest, GaugesHistogramsAndFunctions) {
  MetricRegistry registry;
  Gauge depth = registry.AddGauge("pageferry_depth", "Depth.");
  depth.Set(4);
  depth.Add(-1);
  EXPECT_EQ(depth.value(), 3);
  Histogram latency = registry.AddHistogram("pageferry_seconds", "Time.", LatencyBuckets());
  latency.Observe(0.003);
  latency.Observe(1000);
  EXPECT_EQ(latency.count(), 2);
  EXPECT_NEAR(latency.sum(), 1000.003, 1e-9);
  double live = 7;
  registry.AddGaugeFunction("pageferry_live", "Live.", [&live] { return live; });
  EXPECT_THAT(registry.Serialize(), HasSubstr("pageferry_live 7\n"));
  live = 8;
  EXPECT_THAT(registry.Serialize(), HasSubstr("pageferry_live 8\n"));
  EXPECT_THAT(registry.Serialize(), HasSubstr("pageferry_seconds_bucket{le=\"0.005\"} 1\n"));
  EXPECT_THAT(ExponentialBuckets(1, 4, 3), testing::ElementsAre(1, 4, 16));
}

TEST(MetricsTest, ProcessMetricsAreThereAndPromtoolIsContent) {
  MetricRegistry registry;
  registry.AddProcessMetrics();
  registry.AddCounterFamily({"pageferry_x_total", "X.", {{"kind", {"a", "b"}}}});
  registry.AddHistogram("pageferry_y_seconds", "Y.", LatencyBuckets());
  const std::string text = registry.Serialize();
  for (const char* const name :
       {"process_cpu_seconds_total", "process_resident_memory_bytes",
        "process_virtual_memory_bytes", "process_open_fds", "process_max_fds", "process_threads",
        "process_start_time_seconds"}) {
    EXPECT_THAT(text, HasSubstr(std::string("\n") + name + " ")) << name;
  }
  if (std::system("command -v promtool > /dev/null") != 0) GTEST_SKIP() << "no promtool";
  std::FILE* const promtool = popen("promtool check metrics", "w");
  ASSERT_NE(promtool, nullptr);
  std::fwrite(text.data(), 1, text.size(), promtool);
  EXPECT_EQ(pclose(promtool), 0) << text;
}

}  // namespace
}  // namespace pageferry
