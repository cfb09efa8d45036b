#include "tools/pageferryctl/failure.h"

#include <string>

#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "tools/pageferryctl/json.h"

namespace pageferry::ctl {
namespace {

using absl::StatusCode;

TEST(FailureTest, ExitCodes) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("")), 1);
  EXPECT_EQ(ExitCodeOf(MakeError(StatusCode::kNotFound, Reason::kRoomNotFound, "")), 3);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("refused")), 4);
  EXPECT_EQ(ExitCodeOf(absl::DeadlineExceededError("")), 4);
  // A service that answered is not unreachable.
  EXPECT_EQ(ExitCodeOf(MakeError(StatusCode::kUnavailable, Reason::kWarmingUp, "")), 1);
}

TEST(FailureTest, PeopleSeeCodeReasonMessageAndMetadata) {
  const Failure failure{"unix:/a", MakeError(StatusCode::kNotFound, Reason::kRoomNotFound,
                                             "no room\n7", {{"room_id", "7"}})};
  EXPECT_EQ(FailureText("rooms", failure),
            "pageferryctl rooms: unix:/a: NOT_FOUND ROOM_NOT_FOUND: no room?7\n  room_id 7\n");
  EXPECT_EQ(FailureText("drain", {"", absl::CancelledError("")}),
            "pageferryctl drain: CANCELLED: no message\n");
}

TEST(FailureTest, ProgramsSeeOneLineWithTheFieldsOfErrorDetail) {
  const Failure failure{"h:1", MakeError(StatusCode::kInvalidArgument, Reason::kInvalidField,
                                         "bad \"x\"\n", {{"field", "x"}})};
  const std::string line = FailureJson("ranks", failure, 1);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const Json json = Json::parse(line, nullptr, false);
  EXPECT_EQ(json, (Json{{"command", "ranks"},
                        {"address", "h:1"},
                        {"exit_code", 1},
                        {"code_name", "INVALID_ARGUMENT"},
                        {"code", 3},
                        {"reason", "ERROR_REASON_INVALID_FIELD"},
                        {"message", "bad \"x\"\n"},
                        {"metadata", {{"field", "x"}}}}));
}

}  // namespace
}  // namespace pageferry::ctl
