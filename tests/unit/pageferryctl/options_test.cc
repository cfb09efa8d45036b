#include "tools/pageferryctl/options.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pageferry::ctl {
namespace {

Outcome Parse(absl::string_view line) {
  return ParseOptions(absl::StrSplit(line, ' ', absl::SkipEmpty()), "version text");
}

Options Good(absl::string_view line) {
  Outcome outcome = Parse(line);
  EXPECT_FALSE(outcome.exit_code.has_value()) << line << ": " << outcome.err;
  return outcome.options;
}

class OptionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv("PAGEFERRY_AGENT");
    unsetenv("PAGEFERRY_BOOTSTRAP");
  }
  void TearDown() override { SetUp(); }
};

TEST_F(OptionsTest, DefaultsAreThoseOfTheHelp) {
  const Options options = Good("drain --agent /a");
  EXPECT_EQ(options.command, Command::kDrain);
  EXPECT_EQ(options.timeout, absl::Seconds(5));
  EXPECT_EQ(options.drain_timeout, absl::Seconds(30));
  EXPECT_EQ(options.name_space, "default");
  EXPECT_TRUE(options.wait);
  EXPECT_FALSE(options.json || options.yes || options.deregister);
}

TEST_F(OptionsTest, GlobalOptionsStandBeforeOrBehindTheCommand) {
  for (const char* const line : {"-o json --timeout 250ms --bootstrap a:1,[::1]:2 ranks e",
                                 "ranks --bootstrap a:1 --bootstrap [::1]:2 e -ojson "
                                 "--timeout=250ms"}) {
    const Options options = Good(line);
    EXPECT_EQ(options.command, Command::kRanks);
    EXPECT_EQ(options.engine, "e");
    EXPECT_TRUE(options.json);
    EXPECT_EQ(options.timeout, absl::Milliseconds(250));
    EXPECT_THAT(options.bootstrap, ::testing::ElementsAre("a:1", "[::1]:2"));
  }
}

TEST_F(OptionsTest, DrainHasATimeoutOfItsOwn) {
  const Options options = Good("--timeout 2s drain --timeout 1m --no-wait -y --agent h:1");
  EXPECT_EQ(options.timeout, absl::Seconds(2));
  EXPECT_EQ(options.drain_timeout, absl::Minutes(1));
  EXPECT_FALSE(options.wait);
  EXPECT_TRUE(options.yes);
}

TEST_F(OptionsTest, RoomsWithTheirFilters) {
  const Options list = Good("rooms --agent /a,h:1 --state failed,transferring --role decode");
  EXPECT_THAT(list.agents, ::testing::ElementsAre("unix:/a", "h:1"));
  EXPECT_FALSE(list.room.has_value());
  EXPECT_THAT(list.states, ::testing::UnorderedElementsAre(1, 4));
  EXPECT_EQ(list.role, 2);
  const Options one = Good("rooms 9223372036854775807 --attempt 3 --agent unix:/a");
  EXPECT_EQ(one.room, INT64_MAX);
  EXPECT_EQ(one.attempt, 3);
  EXPECT_EQ(Good("abort 0 --agent /a --reason x").room, 0);
}

TEST_F(OptionsTest, TheEnvironmentCountsWhereNoFlagDoes) {
  setenv("PAGEFERRY_AGENT", "/one,h:2", 1);
  setenv("PAGEFERRY_BOOTSTRAP", "h:3", 1);
  EXPECT_THAT(Good("rooms").agents, ::testing::ElementsAre("unix:/one", "h:2"));
  EXPECT_THAT(Good("rooms --agent /x").agents, ::testing::ElementsAre("unix:/x"));
  EXPECT_THAT(Good("engines").bootstrap, ::testing::ElementsAre("h:3"));
  setenv("PAGEFERRY_BOOTSTRAP", "no port", 1);
  EXPECT_EQ(Parse("engines").exit_code, 2);
}

TEST_F(OptionsTest, HelpAndVersionEndWell) {
  const Outcome version = Parse("--version");
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, ::testing::HasSubstr("version text"));
  for (const char* const line : {"--help", "drain --help"}) {
    const Outcome help = Parse(line);
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_EQ(help.err, "");
    for (const std::string& text : std::vector<std::string>(absl::StrSplit(help.out, '\n'))) {
      EXPECT_LE(text.size(), 120) << text;
    }
  }
}

TEST_F(OptionsTest, WhatIsWrongIsNamedAndNothingIsDone) {
  for (const char* const line :
       {"", "frob", "engines", "rooms", "abort --agent /a", "rooms --agent h:99999",
        "rooms x --agent /a", "rooms 1 --agent /a --role prefill", "rooms --agent /a --attempt 2",
        "engines --bootstrap h:1 extra", "engines --bootstrap h:1 -o xml",
        "drain --agent /a --timeout 61m", "drain --agent /a --agent /b"}) {
    const Outcome outcome = Parse(line);
    EXPECT_EQ(outcome.exit_code, 2) << line;
    EXPECT_THAT(outcome.err, ::testing::StartsWith("pageferryctl: ")) << line;
    EXPECT_EQ(outcome.out, "") << line;
  }
  EXPECT_THAT(Parse("rooms -o json").err, ::testing::StartsWith("{\"command\":\"rooms\""));
}

}  // namespace
}  // namespace pageferry::ctl
