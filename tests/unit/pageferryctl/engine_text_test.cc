#include "tools/pageferryctl/engine_text.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace pageferry::ctl {
namespace {

template <class Message>
Message Read(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

using bootstrap::v1::GetEngineResponse;
using bootstrap::v1::ListEnginesResponse;

TEST(EngineTextTest, ListsEngines) {
  const auto engines = Read<ListEnginesResponse>(R"(
    version: 12
    engines { key { namespace: "default" engine_id: "prefill-0" } role: ROLE_PREFILL
              shape { dp: 2 cp: 1 tp: 4 pp: 1 } ready: true live_count: 8 }
    engines { key { namespace: "default" engine_id: "decode-0" } role: ROLE_DECODE
              shape { dp: 1 cp: 1 tp: 2 pp: 1 } live_count: 1 missing_count: 1
              missing { tp: 1 } })");
  EXPECT_EQ(EnginesText(engines, false),
            "ENGINE     ROLE     DPxCPxTPxPP  READY  LIVE  MISSING\n"
            "prefill-0  prefill  2x1x4x1      yes     8/8\n"
            "decode-0   decode   1x1x2x1      no      1/2  dp0 cp0 tp1 pp0\n"
            "Table version 12.\n");
  EXPECT_THAT(EnginesText(engines, true), ::testing::StartsWith("NAMESPACE  ENGINE"));
}

TEST(EngineTextTest, AWarmingServiceIsNotAnEmptyOne) {
  EXPECT_EQ(EnginesText(ListEnginesResponse(), false), "No engines.\nTable version 0.\n");
  const auto warming = Read<ListEnginesResponse>("warming_up: true");
  EXPECT_THAT(EnginesText(warming, false), ::testing::HasSubstr("WARMING UP"));
}

TEST(EngineTextTest, ManyMissingAreCountedAndLinesStayShort) {
  ListEnginesResponse engines;
  bootstrap::v1::Engine& engine = *engines.add_engines();
  engine.mutable_key()->set_engine_id(std::string(128, 'e'));
  engine.mutable_key()->set_namespace_(std::string(63, 'n'));
  engine.set_missing_count(500);
  for (int tp = 0; tp < 64; ++tp) engine.add_missing()->set_tp(tp);
  const std::string text = EnginesText(engines, true);
  EXPECT_THAT(text, ::testing::HasSubstr("dp0 cp0 tp0 pp0, dp0 cp0 tp1 pp0 +498"));
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    EXPECT_LE(line.size(), 120) << line;
  }
}

TEST(EngineTextTest, RanksStandInRankOrderWithTheMissingBetweenThem) {
  const auto response = Read<GetEngineResponse>(R"(
    version: 3
    engine { key { namespace: "default" engine_id: "e" } role: ROLE_DECODE
             shape { dp: 1 cp: 1 tp: 3 pp: 1 } live_count: 2 missing_count: 1 missing { tp: 1 }
             ranks { coordinate { tp: 2 } agent { agent_id: "b" epoch: 41 }
                     endpoint { host: "10.0.0.2" port: 7000 } ttl { seconds: 2 nanos: 900000000 }
                     transports: "local" transports: "tcp" }
             ranks { coordinate {} agent { agent_id: "a" epoch: 7 }
                     endpoint { host: "::1" port: 7000 } ttl { seconds: 1 } } })");
  EXPECT_EQ(RanksText(response),
            "Engine e in default: decode, dp1 cp1 tp3 pp1, 2/3 live, not ready, table version 3.\n"
            "COORDINATE       AGENT    EPOCH  ENDPOINT        TTL  TRANSPORTS\n"
            "dp0 cp0 tp0 pp0  a            7  [::1]:7000     1.0s\n"
            "dp0 cp0 tp1 pp0  missing\n"
            "dp0 cp0 tp2 pp0  b           41  10.0.0.2:7000  2.9s  local,tcp\n");
}

TEST(EngineTextTest, AShapeThatCannotBeShowsWhatIsThere) {
  const auto response = Read<GetEngineResponse>(R"(
    engine { shape { dp: -1 cp: 1 tp: 1 pp: 1 }
             ranks { coordinate { dp: 5 } agent { agent_id: "a" epoch: 7 } } })");
  EXPECT_THAT(RanksText(response), ::testing::HasSubstr("dp5 cp0 tp0 pp0  a"));
}

}  // namespace
}  // namespace pageferry::ctl
