#include "libs/common/log.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "libs/common/ids.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"

namespace pageferry {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

LogArea room_log("log_test_room");
LogArea other_log("log_test_other");

class LogTest : public testing::Test {
 protected:
  ~LogTest() override { EXPECT_THAT(ConfigureLog({}), IsOk()); }

  void Configure(LogOptions options) {
    options.writer = [this](const std::string& line) { lines_.push_back(line); };
    ASSERT_THAT(ConfigureLog(options), IsOk());
  }

  std::vector<std::string> lines_;
};

std::string Text(LogFormat format, std::initializer_list<LogField> fields) {
  return FormatLogLine(format, absl::FromUnixMicros(1'764'562'811'123'456), LogLevel::kInfo,
                       "session", "hello_received", fields);
}

TEST_F(LogTest, WritesNameValuePairs) {
  EXPECT_EQ(Text(LogFormat::kText, {{"room", RoomId(5)},
                                    {"agent", AgentId("a-1")},
                                    {"ok", true},
                                    {"wait_seconds", absl::Milliseconds(250)},
                                    {"bytes", uint64_t{18'446'744'073'709'551'615U}}}),
            "2025-12-01T04:20:11.123456Z info session hello_received room 5 agent a-1 ok true "
            "wait_seconds 0.25 bytes 18446744073709551615");
}

TEST_F(LogTest, QuotesWhatWouldBreakALine) {
  EXPECT_THAT(Text(LogFormat::kText, {{"a", "two words"}, {"b", "line\nbreak\"\\"}, {"c", ""}}),
              testing::EndsWith(R"( a "two words" b "line\nbreak\"\\" c "")"));
  EXPECT_THAT(
      Text(LogFormat::kText,
           {{"status", MakeError(absl::StatusCode::kUnavailable, Reason::kPeerLost, "gone")}}),
      testing::EndsWith(R"( status "UNAVAILABLE [PEER_LOST] gone")"));
}

TEST_F(LogTest, EveryByteMakesParsableJson) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  const nlohmann::json line = nlohmann::json::parse(
      Text(LogFormat::kJson, {{"all", all},
                              {"euro", "\xE2\x82\xAC"},
                              {"inf", std::numeric_limits<double>::infinity()},
                              {"nan", std::nan("")},
                              {"ratio", 0.5},
                              {"low", int64_t{std::numeric_limits<int64_t>::min()}}}));
  EXPECT_EQ(line["time"], "2025-12-01T04:20:11.123456Z");
  EXPECT_EQ(line["level"], "info");
  EXPECT_EQ(line["area"], "session");
  EXPECT_EQ(line["event"], "hello_received");
  EXPECT_EQ(line["all"].get<std::string>(), all.substr(0, 128) + std::string(128, '?'));
  EXPECT_EQ(line["euro"], "\xE2\x82\xAC");
  EXPECT_EQ(line["inf"], "inf");
  EXPECT_EQ(line["ratio"], 0.5);
  EXPECT_EQ(line["low"], std::numeric_limits<int64_t>::min());
}

TEST_F(LogTest, LongValuesAreCut) {
  EXPECT_LT(Text(LogFormat::kText, {{"a", std::string(100'000, 'x')}}).size(), 5000U);
  EXPECT_LT(Text(LogFormat::kJson, {{"a", std::string(100'000, 'x')}}).size(), 5000U);
}

TEST_F(LogTest, VerboseAreasAreSwitchedByName) {
  Configure({.verbose_areas = {"log_test_room"}});
  Log(LogLevel::kVerbose, room_log, "seen");
  Log(LogLevel::kVerbose, other_log, "hidden");
  Log(LogLevel::kInfo, other_log, "seen_too");
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("verbose log_test_room seen"),
                                  HasSubstr("info log_test_other seen_too")));
  Configure({.verbose_areas = {"all"}});
  EXPECT_TRUE(other_log.enabled(LogLevel::kVerbose));
  static LogArea late("log_test_late");  // defined after the configuration
  EXPECT_TRUE(late.enabled(LogLevel::kVerbose));
}

TEST_F(LogTest, LevelFilters) {
  Configure({.level = LogLevel::kError});
  Log(LogLevel::kWarning, room_log, "hidden");
  Log(LogLevel::kError, room_log, "seen");
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("error log_test_room seen")));
  Configure({.level = LogLevel::kVerbose});
  EXPECT_TRUE(room_log.enabled(LogLevel::kVerbose));
}

TEST_F(LogTest, UnknownAreasAreRefusedWhole) {
  EXPECT_THAT(ConfigureLog({.level = LogLevel::kError, .verbose_areas = {"log_test_room", "nope"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField));
  EXPECT_TRUE(room_log.enabled(LogLevel::kInfo));
  EXPECT_FALSE(room_log.enabled(LogLevel::kVerbose));
  EXPECT_THAT(LogAreaNames(), Contains("log_test_other"));
}

TEST(LogRateLimitTest, BurstThenOneAnIntervalWithTheNumberHeldBack) {
  LogRateLimit limit(absl::Seconds(1), 2);
  MonotonicTime now = MonotonicTime::FromNanoseconds(5);
  EXPECT_THAT(limit.Admit(now), Optional(0));
  EXPECT_THAT(limit.Admit(now), Optional(0));
  EXPECT_EQ(limit.Admit(now), std::nullopt);
  EXPECT_EQ(limit.Admit(now + absl::Milliseconds(999)), std::nullopt);
  now += absl::Milliseconds(1500);
  EXPECT_THAT(limit.Admit(now), Optional(2));
  EXPECT_EQ(limit.Admit(now), std::nullopt);
  now += absl::Milliseconds(500);  // the half second was not lost
  EXPECT_THAT(limit.Admit(now), Optional(1));
  now += absl::Hours(1);
  EXPECT_THAT(limit.Admit(now), Optional(0));
  EXPECT_THAT(limit.Admit(now), Optional(0));
  EXPECT_EQ(limit.Admit(now), std::nullopt);
}

}  // namespace
}  // namespace pageferry
