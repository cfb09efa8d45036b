#include "libs/common/grpc_status.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/support/status.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "tests/testing/status_matchers.h"

namespace pageferry {
namespace {

using testing::Pair;
using testing::UnorderedElementsAre;

TEST(GrpcStatusTest, GoesThereAndBackWithReason) {
  const absl::Status sent = MakeError(absl::StatusCode::kUnavailable, Reason::kEngineNotReady,
                                      "two ranks are missing", {{"missing", "dp0 cp0 tp3 pp1"}});
  const grpc::Status wire = ToGrpcStatus(sent);
  EXPECT_EQ(wire.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(wire.error_details().empty());
  const absl::Status received = FromGrpcStatus(wire);
  EXPECT_THAT(received, StatusIs(absl::StatusCode::kUnavailable, Reason::kEngineNotReady));
  EXPECT_EQ(received.message(), sent.message());
  EXPECT_THAT(MetadataOf(received), UnorderedElementsAre(Pair("missing", "dp0 cp0 tp3 pp1")));
}

TEST(GrpcStatusTest, EveryCodeStays) {
  EXPECT_THAT(FromGrpcStatus(ToGrpcStatus(absl::OkStatus())), IsOk());
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "m");
    const grpc::Status wire = ToGrpcStatus(status);
    EXPECT_TRUE(wire.error_details().empty());
    EXPECT_EQ(FromGrpcStatus(wire), status);
  }
}

TEST(GrpcStatusTest, DetailsFitTheTrailers) {
  ErrorMetadata metadata = {{"missing", std::string(8000, 'm')}, {"field", "tp"}};
  for (int i = 0; i < 40; ++i) metadata[absl::StrCat("k", i)] = std::string(900, 'v');
  const grpc::Status wire = ToGrpcStatus(
      MakeError(absl::StatusCode::kInternal, Reason::kInternal, std::string(4000, 'x'), metadata));
  EXPECT_LE(wire.error_details().size(), 4096U);
  EXPECT_LE(wire.error_message().size(), 1024U);
  const ErrorMetadata kept = MetadataOf(FromGrpcStatus(wire));
  EXPECT_EQ(kept.at("truncated"), "true");
  EXPECT_EQ(kept.at("field"), "tp");
}

TEST(GrpcStatusTest, UnknownCodesAndBadDetailsDoNoHarm) {
  EXPECT_THAT(FromGrpcStatus({static_cast<grpc::StatusCode>(20), "m"}),
              StatusIs(absl::StatusCode::kUnknown));
  const absl::Status status =
      FromGrpcStatus({grpc::StatusCode::ABORTED, "m", std::string("\xFF\xFF not a proto")});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, Reason::kUnspecified));
}

}  // namespace
}  // namespace pageferry
