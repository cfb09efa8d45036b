#include "tools/pageferryctl/room_text.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace pageferry::ctl {
namespace {

AgentRoom Read(const std::string& text) {
  AgentRoom room{.address = "unix:/a"};
  room.agent.set_agent_id("agent-a");
  room.agent.set_epoch(7);
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &room.room)) << text;
  return room;
}

AgentRoom Waiting() {
  return Read(R"(
    room { room_id: 9007199254740993 attempt: 1 } role: ROLE_DECODE
    state: ROOM_STATE_WAITING_FOR_INPUT waiting_for: "first offer of the prefill side"
    waiting_time { seconds: 2 } age { seconds: 65 } time_left { seconds: 235 }
    peer { agent_id: "b" epoch: 3 } peer_engine_id: "prefill-0" transport: "local"
    pages_granted: 3)");
}

AgentRoom Failed() {
  return Read(R"(
    room { room_id: 5 } role: ROLE_PREFILL state: ROOM_STATE_FAILED pages_granted: -1
    error { code: 10 reason: ERROR_REASON_OPERATOR_ABORTED message: "aborted by an operator"
            metadata { key: "detail" value: "stuck" } })");
}

TEST(RoomTextTest, OneLineARoom) {
  EXPECT_EQ(
      RoomsText({Waiting(), Failed()}),
      "AGENT                ROOM  ATT  ROLE     STATE                AGE   LEFT  PAGES  BY     "
      "WAITS FOR, OR WHY IT FAILED\n"
      "agent-a  9007199254740993    1  decode   waiting_for_input  1m05s  3m55s    0/3  local  "
      "2.0s for first offer of the pr..\n"
      "agent-a                 5    0  prefill  failed               0ms      -    0/?         "
      "OPERATOR_ABORTED, not drained\n");
  EXPECT_EQ(RoomsText({}), "No rooms.\n");
}

TEST(RoomTextTest, LinesStayShortWhateverTheNames) {
  AgentRoom room = Waiting();
  room.agent.set_agent_id(std::string(128, 'a'));
  room.room.mutable_room()->set_room_id(INT64_MAX);
  room.room.set_pages_done(123'456);
  room.room.set_pages_granted(123'456);
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(RoomsText({room}), '\n'))) {
    EXPECT_LE(line.size(), 120) << line;
  }
}

TEST(RoomTextTest, DetailsOfSeveralAgentsStandApart) {
  const std::string text = RoomDetails({Waiting(), Failed()});
  EXPECT_EQ(text,
            "room           9007199254740993 attempt 1\n"
            "agent          agent-a epoch 7 at unix:/a\n"
            "role           decode\n"
            "state          waiting_for_input\n"
            "drained        no\n"
            "waits for      first offer of the prefill side\n"
            "in this state  2.0s\n"
            "age            1m05s\n"
            "time left      3m55s\n"
            "peer engine    prefill-0\n"
            "peer agent     b epoch 3\n"
            "transport      local\n"
            "pages          0 in place, 0 offered, 3 granted\n"
            "bytes          0\n"
            "\n"
            "room           5 attempt 0\n"
            "agent          agent-a epoch 7 at unix:/a\n"
            "role           prefill\n"
            "state          failed\n"
            "drained        no\n"
            "in this state  0ms\n"
            "age            0ms\n"
            "pages          0 in place, 0 offered, ? granted\n"
            "bytes          0\n"
            "error          ABORTED OPERATOR_ABORTED: aborted by an operator\n"
            "  detail       stuck\n");
}

TEST(RoomTextTest, JsonHasTheNamesOfTheProtoAndNoNumberThatLosesDigits) {
  const Json document = RoomsJson({Waiting()});
  const Json& room = document["rooms"][0];
  EXPECT_EQ(room["agent"], (Json{{"agent_id", "agent-a"}, {"epoch", "7"}}));
  EXPECT_EQ(room["agent_address"], "unix:/a");
  EXPECT_EQ(room["room"], (Json{{"room_id", "9007199254740993"}, {"attempt", 1}}));
  EXPECT_EQ(room["state"], "ROOM_STATE_WAITING_FOR_INPUT");
  EXPECT_EQ(room["drained"], false);
  EXPECT_EQ(room["pages_done"], "0");
  EXPECT_EQ(room["age"], "65s");
  EXPECT_FALSE(room.contains("error"));
  EXPECT_EQ(Document(RoomsJson({})), "{\n  \"rooms\": []\n}\n");
}

}  // namespace
}  // namespace pageferry::ctl
