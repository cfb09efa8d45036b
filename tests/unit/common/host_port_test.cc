#include "libs/common/host_port.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "tests/testing/status_matchers.h"

namespace pageferry {
namespace {

TEST(HostPortTest, ReadsAndWrites) {
  EXPECT_THAT(ParseHostPort("127.0.0.1:7000"), IsOkAndHolds(HostPort{"127.0.0.1", 7000}));
  EXPECT_THAT(ParseHostPort("[::1]:0"), IsOkAndHolds(HostPort{"::1", 0}));
  EXPECT_THAT(ParseHostPort("node-3.rack_1:65535"), IsOkAndHolds(HostPort{"node-3.rack_1", 65535}));
  EXPECT_THAT(ParseHostPort(":7"), IsOkAndHolds(HostPort{"::", 7}));
  EXPECT_THAT(ParseHostPort("*:7"), IsOkAndHolds(HostPort{"::", 7}));
  EXPECT_EQ(ToString(HostPort{"::1", 7}), "[::1]:7");
  EXPECT_EQ(ToString(HostPort{"a", 7}), "a:7");
}

TEST(HostPortTest, RefusesTheRest) {
  // StrCat: g++ 12 warns wrongly about a sum with a long literal (-Warray-bounds).
  std::vector<std::string> texts;
  for (const char* text : {"", "a", "a:", "a:x", "a:65536", "a:-1", "a:+1", "a: 1", "::1:7",
                           "[::1]", "[]:7", "[a]:7", "[::1:7", "a b:7", "http://a:7", "a:000080"}) {
    texts.emplace_back(text);
  }
  texts.push_back(absl::StrCat(std::string(300, 'a'), ":7"));
  for (const std::string& text : texts) {
    EXPECT_THAT(ParseHostPort(text),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField))
        << text;
  }
}

TEST(HostPortTest, KnowsLoopbackAndWildcard) {
  for (const char* const host :
       {"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
    EXPECT_FALSE(IsWildcard(host)) << host;
  }
  for (const char* const host : {"0.0.0.0", "::", "0:0:0:0:0:0:0:0", "::ffff:0.0.0.0"}) {
    EXPECT_TRUE(IsWildcard(host)) << host;
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
  for (const char* const host : {"10.0.0.1", "128.0.0.1", "fe80::1", "::2"}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
    EXPECT_FALSE(IsWildcard(host)) << host;
  }
  EXPECT_THAT(NumericHost("127.0.0.1"), IsOkAndHolds("127.0.0.1"));
  EXPECT_THAT(NumericHost("::1"), IsOkAndHolds("::1"));
}

TEST(HostPortTest, ProbeBindTellsWhy) {
  EXPECT_THAT(ProbeBind({"127.0.0.1", 0}), IsOk());
  EXPECT_THAT(ProbeBind({"192.0.2.1", 0}),  // a documentation address, never of this host
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField));
}

}  // namespace
}  // namespace pageferry
