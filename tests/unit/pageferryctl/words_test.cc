#include "tools/pageferryctl/words.h"

#include <string>

#include "gtest/gtest.h"

namespace pageferry::ctl {
namespace {

std::string Seconds(int64_t seconds, int32_t milliseconds = 0) {
  google::protobuf::Duration duration;
  duration.set_seconds(seconds);
  duration.set_nanos(milliseconds * 1'000'000);
  return Text(duration);
}

TEST(WordsTest, DurationsAreShort) {
  EXPECT_EQ(Seconds(0), "0ms");
  EXPECT_EQ(Seconds(0, 350), "350ms");
  EXPECT_EQ(Seconds(2, 560), "2.5s");
  EXPECT_EQ(Seconds(59, 999), "59.9s");
  EXPECT_EQ(Seconds(245), "4m05s");
  EXPECT_EQ(Seconds(12'000), "3h20m");
  EXPECT_EQ(Seconds(187'200), "2d04h");
  EXPECT_EQ(Seconds(-3), "0ms");
}

TEST(WordsTest, EnumsLoseTheirPrefixAndStayNumbersWhereUnknown) {
  EXPECT_EQ(Word(agent::v1::ROOM_STATE_WAITING_FOR_INPUT), "waiting_for_input");
  EXPECT_EQ(Word(agent::v1::AGENT_STATE_DRAINING), "draining");
  EXPECT_EQ(Word(topology::v1::ROLE_PREFILL), "prefill");
  EXPECT_EQ(Word(static_cast<agent::v1::RoomState>(77)), "77");
}

TEST(WordsTest, PlacesAndAgents) {
  topology::v1::Endpoint endpoint;
  EXPECT_EQ(Text(endpoint), "");
  endpoint.set_host("::1");
  endpoint.set_port(7000);
  EXPECT_EQ(Text(endpoint), "[::1]:7000");
  topology::v1::AgentRef agent;
  agent.set_agent_id("a");
  agent.set_epoch(1LL << 60);
  EXPECT_EQ(Text(agent), "a epoch 1152921504606846976");
}

}  // namespace
}  // namespace pageferry::ctl
