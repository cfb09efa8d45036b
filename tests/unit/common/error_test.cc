#include "libs/common/error.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/status.h"
#include "libs/common/utf8.h"
#include "pageferry/error/v1/error.pb.h"
#include "tests/testing/status_matchers.h"

namespace pageferry {
namespace {

using testing::Pair;
using testing::UnorderedElementsAre;

TEST(ErrorTest, EveryReasonOfTheProtoHasAName) {
  const auto* const values = error::v1::ErrorReason_descriptor();
  for (int i = 0; i < values->value_count(); ++i) {
    EXPECT_EQ(
        absl::StrCat("ERROR_REASON_", ReasonName(static_cast<Reason>(values->value(i)->number()))),
        values->value(i)->name());
  }
  EXPECT_EQ(ReasonName(static_cast<Reason>(9999)), "UNKNOWN");
}

TEST(ErrorTest, CarriesReasonAndMetadataThroughAnnotate) {
  const absl::Status status =
      Annotate(MakeError(absl::StatusCode::kFailedPrecondition, Reason::kShapeMismatch,
                         "tp differs", {{"field", "tp"}, {"have", "4"}}),
               "engine e");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kShapeMismatch));
  EXPECT_THAT(MetadataOf(status), UnorderedElementsAre(Pair("field", "tp"), Pair("have", "4")));
  EXPECT_EQ(status.message(), "engine e: tp differs");
}

TEST(ErrorTest, PlainStatusHasNoReason) {
  EXPECT_EQ(ReasonOf(absl::OkStatus()), Reason::kUnspecified);
  EXPECT_EQ(ReasonOf(absl::InternalError("x")), Reason::kUnspecified);
  EXPECT_TRUE(MetadataOf(absl::InternalError("x")).empty());
  EXPECT_THAT(Annotate(absl::OkStatus(), "x"), IsOk());
}

TEST(ErrorTest, OkCodeBecomesInternal) {
  EXPECT_THAT(MakeError(absl::StatusCode::kOk, Reason::kDraining, ""),
              StatusIs(absl::StatusCode::kInternal, Reason::kDraining));
}

TEST(ErrorTest, KeepsTheBoundsOfErrorDetail) {
  ErrorMetadata metadata;
  for (int i = 0; i < 100; ++i) metadata[absl::StrCat("key", i)] = std::string(5000, 'v');
  metadata["missing"] = std::string(20000, 'm');
  metadata["bad"] = "\xFF";
  metadata.erase("key0");
  const absl::Status status =
      MakeError(absl::StatusCode::kInternal, Reason::kInternal, std::string(9000, 'x'), metadata);
  EXPECT_EQ(status.message().size(), 4096U);
  const ErrorMetadata kept = MetadataOf(status);
  EXPECT_EQ(kept.size(), 32U);
  EXPECT_EQ(kept.at("key1").size(), 1024U);
  EXPECT_EQ(kept.at("bad"), "?");
}

TEST(ErrorTest, TravelsInFrames) {
  const absl::Status sent =
      MakeError(absl::StatusCode::kAborted, Reason::kSealBroken, "gone", {{"room", "5"}});
  error::v1::ErrorDetail detail;
  ToErrorDetail(sent, detail);
  EXPECT_EQ(detail.code(), 10);
  EXPECT_EQ(detail.reason(), error::v1::ERROR_REASON_SEAL_BROKEN);
  const absl::Status received = FromErrorDetail(detail);
  EXPECT_THAT(received, StatusIs(absl::StatusCode::kAborted, Reason::kSealBroken));
  EXPECT_THAT(MetadataOf(received), UnorderedElementsAre(Pair("room", "5")));
  EXPECT_EQ(received.message(), "gone");
}

TEST(ErrorTest, HostileFramesBecomeUnknownAndBounded) {
  error::v1::ErrorDetail detail;
  for (const int code : {-1, 0, 17, 1 << 30}) {
    detail.set_code(code);
    EXPECT_THAT(FromErrorDetail(detail), StatusIs(absl::StatusCode::kUnknown));
  }
  for (int i = 0; i < 1000; ++i) (*detail.mutable_metadata())[absl::StrCat(i)] = "x";
  EXPECT_EQ(MetadataOf(FromErrorDetail(detail)).size(), 32U);
}

TEST(StatusMacrosTest, ReturnOrGoOn) {
  const auto twice = [](absl::StatusOr<int> value) -> absl::StatusOr<int> {
    PAGEFERRY_ASSIGN_OR_RETURN(const int good, value, Annotate(_, "twice"));
    return 2 * good;
  };
  EXPECT_THAT(twice(4), IsOkAndHolds(8));
  EXPECT_EQ(twice(absl::NotFoundError("x")).status().message(), "twice: x");
  const auto check = [](bool inner) -> absl::Status {
    if (inner)
      PAGEFERRY_RETURN_IF_ERROR(absl::NotFoundError("x"));
    else
      return absl::AbortedError("else belongs to the outer if");
    return absl::OkStatus();
  };
  EXPECT_THAT(check(true), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(check(false), StatusIs(absl::StatusCode::kAborted));
}

TEST(Utf8Test, KeepsGoodAndReplacesBad) {
  EXPECT_EQ(ValidUtf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"),
            "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(ValidUtf8("\xC0\x80"), "??");            // overlong
  EXPECT_EQ(ValidUtf8("\xED\xA0\x80"), "???");       // surrogate
  EXPECT_EQ(ValidUtf8("\xF4\x90\x80\x80"), "????");  // above U+10FFFF
  EXPECT_EQ(ValidUtf8("\xE2\x82"), "??");            // cut short
  EXPECT_EQ(ValidUtf8("a\xE2\x82\xAC", 3), "a");     // never cut inside a character
}

}  // namespace
}  // namespace pageferry
