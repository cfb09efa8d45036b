#include "libs/common/flags.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "libs/common/ids.h"
#include "tests/testing/status_matchers.h"

namespace pageferry {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Config {
  std::string listen = "127.0.0.1:7000";
  int64_t rooms = 10;
  absl::Duration ttl = absl::Seconds(3);
  ByteCount frame = ByteCount(4 << 20);
  bool insecure = false;
  bool reflection = true;
  std::string format = "text";
  std::vector<std::string> areas;
  std::string custom = "unset";
};

class FlagsTest : public testing::Test {
 protected:
  FlagsTest() {
    flags_.Group("Listening");
    flags_.String("listen", &config_.listen, "Address.");
    flags_.Bool("insecure", &config_.insecure, "No TLS.");
    flags_.Bool("reflection", &config_.reflection, "Reflection.");
    flags_.Group("Limits");
    flags_.Int("max-rooms", &config_.rooms, 1, 1000, "Rooms.");
    flags_.Duration("lease-ttl", &config_.ttl, absl::Seconds(1), absl::Minutes(10), "Lease.");
    flags_.Bytes("max-frame", &config_.frame, ByteCount(1024), ByteCount(1 << 30), "Frame.");
    flags_.Choice("log-format", &config_.format, {"text", "json"}, "Format.");
    flags_.List("log-verbose", &config_.areas, "Areas.");
    flags_.Custom(
        "even", "0",
        [](absl::string_view text) {
          return text.size() % 2 == 0 ? absl::OkStatus() : absl::InvalidArgumentError("odd length");
        },
        [this](absl::string_view text) { config_.custom = std::string(text); }, "Even.");
  }

  FlagsOutcome Parse(const std::vector<std::string>& arguments) {
    return flags_.Parse(arguments, [this](const char* name) -> const char* {
      const auto found = environment_.find(name);
      return found == environment_.end() ? nullptr : found->second.c_str();
    });
  }

  Config config_;
  std::map<std::string, std::string> environment_;
  Flags flags_{"pageferry-bootstrap", "The port table.", "bootstrap", "pageferry-bootstrap 1.2.3"};
};

TEST_F(FlagsTest, DefaultsStay) {
  EXPECT_EQ(Parse({}).exit_code, std::nullopt);
  EXPECT_EQ(config_.rooms, 10);
  EXPECT_EQ(config_.custom, "unset");
}

TEST_F(FlagsTest, ReadsEveryKind) {
  const FlagsOutcome outcome =
      Parse({"--listen", "[::1]:0", "--max-rooms=7", "--lease-ttl", "1m30s", "--max-frame=64MiB",
             "--insecure", "--reflection=off", "--log-format", "json", "--log-verbose", "a,b",
             "--log-verbose=c", "--even", "ab"});
  EXPECT_EQ(outcome.exit_code, std::nullopt) << outcome.err;
  EXPECT_EQ(config_.listen, "[::1]:0");
  EXPECT_EQ(config_.rooms, 7);
  EXPECT_EQ(config_.ttl, absl::Seconds(90));
  EXPECT_EQ(config_.frame, ByteCount(64 << 20));
  EXPECT_TRUE(config_.insecure);
  EXPECT_FALSE(config_.reflection);
  EXPECT_EQ(config_.format, "json");
  EXPECT_THAT(config_.areas, ElementsAre("a", "b", "c"));
  EXPECT_EQ(config_.custom, "ab");
}

TEST_F(FlagsTest, LastOneCountsAndBoundsAreInclusive) {
  EXPECT_EQ(Parse({"--max-rooms=1", "--max-rooms=1000"}).exit_code, std::nullopt);
  EXPECT_EQ(config_.rooms, 1000);
}

TEST_F(FlagsTest, CommandLineThenPartThenCommonEnvironment) {
  environment_ = {
      {"PAGEFERRY_LEASE_TTL", "5s"},          {"PAGEFERRY_BOOTSTRAP_LEASE_TTL", "6s"},
      {"PAGEFERRY_MAX_ROOMS", "5"},           {"PAGEFERRY_INSECURE", "true"},
      {"PAGEFERRY_BOOTSTRAP_LOG_FORMAT", ""}, {"PAGEFERRY_BOOTSTRAP_SERVICE_HOST", "10.0.0.1"}};
  EXPECT_EQ(Parse({"--max-rooms", "9"}).exit_code, std::nullopt);
  EXPECT_EQ(config_.ttl, absl::Seconds(6));
  EXPECT_EQ(config_.rooms, 9);
  EXPECT_TRUE(config_.insecure);
  EXPECT_EQ(config_.format, "text");
}

TEST_F(FlagsTest, ReportsAllErrorsAndSetsNothing) {
  environment_ = {{"PAGEFERRY_MAX_FRAME", "12 parsecs"}};
  const FlagsOutcome outcome =
      Parse({"--lease-ttl", "0.5s", "--max-rooms=many", "--nope", "x", "stray", "--log-format=xml",
             "--reflection=maybe", "--even=abc", "--listen=new", "--listen"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  for (const char* const part :
       {"--lease-ttl: value \"0.5s\", allowed: a duration such as 3s or 250ms, from 1s to 10m",
        "--max-rooms: value \"many\", allowed: a whole number from 1 to 1000",
        "--max-frame (from PAGEFERRY_MAX_FRAME): value \"12 parsecs\"", "unknown flag --nope",
        "unexpected argument \"stray\"", "--log-format: value \"xml\", allowed: text, json",
        "--reflection: value \"maybe\"", "--even: odd length", "--listen: its value is missing",
        "9 errors"}) {
    EXPECT_THAT(outcome.err, HasSubstr(part));
  }
  EXPECT_EQ(config_.listen, "127.0.0.1:7000");
}

TEST_F(FlagsTest, ChecksSeeTheWholeConfiguration) {
  flags_.Check([this] {
    return config_.insecure ? absl::InvalidArgumentError("insecure is off limits")
                            : absl::OkStatus();
  });
  EXPECT_EQ(Parse({}).exit_code, std::nullopt);
  const FlagsOutcome outcome = Parse({"--insecure"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("insecure is off limits"));
}

TEST(FlagsAddressTest, TakesAddressesAndWords) {
  std::string target = "auto";
  const auto parse = [&](const std::string& text) {
    Flags flags("p", "d", "part", "v");
    flags.Address("listen", &target, {"auto", "none"}, "where.");
    return flags.Parse({"--listen", text}, [](const char*) { return nullptr; });
  };
  for (const char* const good : {"none", "auto", "127.0.0.1:0", "[::1]:80", "host:1"}) {
    EXPECT_EQ(parse(good).exit_code, std::nullopt) << good;
    EXPECT_EQ(target, good);
  }
  for (const char* const bad : {"", "host", "[::1", "host:70000", "never"}) {
    const FlagsOutcome outcome = parse(bad);
    EXPECT_EQ(outcome.exit_code, 2) << bad;
    EXPECT_THAT(outcome.err, HasSubstr("--listen: value"));
    EXPECT_THAT(outcome.err, HasSubstr("auto, none, host:port"));
  }
}

TEST_F(FlagsTest, HelpAndVersion) {
  const FlagsOutcome help = Parse({"--help", "--nope"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* const part : {"Usage: pageferry-bootstrap", "Listening:\n", "Limits:\n",
                                 "  --lease-ttl DURATION\n", "Default: 3s.", "Default: 4MiB.",
                                 "--log-format text|json", "PAGEFERRY_BOOTSTRAP_SOME_FLAG"}) {
    EXPECT_THAT(help.out, HasSubstr(part));
  }
  for (const absl::string_view line : absl::StrSplit(help.out, '\n')) {
    EXPECT_LE(line.size(), 80u) << line;
  }
  const FlagsOutcome version = Parse({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.out, "pageferry-bootstrap 1.2.3\n");
}

TEST(FlagValuesTest, Bytes) {
  EXPECT_THAT(ParseBytesFlag("0"), IsOkAndHolds(ByteCount(0)));
  EXPECT_THAT(ParseBytesFlag("4096"), IsOkAndHolds(ByteCount(4096)));
  EXPECT_THAT(ParseBytesFlag("512B"), IsOkAndHolds(ByteCount(512)));
  EXPECT_THAT(ParseBytesFlag("2TiB"), IsOkAndHolds(ByteCount(int64_t{2} << 40)));
  EXPECT_THAT(ParseBytesFlag("3MB"), IsOkAndHolds(ByteCount(3'000'000)));
  for (const char* const text : {"", "MiB", "-1", "+1", "1.5GiB", "1 MiB", "1mib", "1MiBx",
                                 "9999999999999999999", "8388608TiB", "0x10"}) {
    EXPECT_THAT(ParseBytesFlag(text),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField))
        << text;
  }
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1023}, int64_t{1} << 20,
                              (int64_t{1} << 40) + 1024, INT64_MAX}) {
    EXPECT_THAT(ParseBytesFlag(FormatBytes(ByteCount(bytes))), IsOkAndHolds(ByteCount(bytes)));
  }
}

TEST(FlagValuesTest, Durations) {
  EXPECT_THAT(ParseDurationFlag("250ms"), IsOkAndHolds(absl::Milliseconds(250)));
  EXPECT_THAT(ParseDurationFlag("0"), IsOkAndHolds(absl::ZeroDuration()));
  for (const char* const text : {"", "3", "s", "inf", "-inf", "3 s", "3sec"}) {
    EXPECT_FALSE(ParseDurationFlag(text).ok()) << text;
  }
}

}  // namespace
}  // namespace pageferry
