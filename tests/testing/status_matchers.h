#pragma once

#include <ostream>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"

namespace pageferry {

/// The status inside a Status or StatusOr.
inline absl::Status StatusOf(const absl::Status& status) { return status; }
template <class T>
absl::Status StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

/// Matches a Status or StatusOr that is OK.
MATCHER(IsOk, negation ? "is an error" : "is OK") {
  *result_listener << StatusOf(arg);
  return StatusOf(arg).ok();
}

/// Matches a Status or StatusOr with this canonical code.
MATCHER_P(StatusIs, code, "has code " + absl::StatusCodeToString(code)) {
  *result_listener << StatusOf(arg);
  return StatusOf(arg).code() == code;
}

/// Matches a Status or StatusOr whose error carries this reason. Tests assert code and reason,
/// never text.
MATCHER_P(HasReason, reason, "has reason " + std::string(ReasonName(reason))) {
  *result_listener << StatusOf(arg) << " with reason " << ReasonName(ReasonOf(StatusOf(arg)));
  return ReasonOf(StatusOf(arg)) == reason;
}

/// Matches an error that has both.
template <class Code>
auto StatusIs(Code code, Reason reason) {
  return testing::AllOf(StatusIs(code), HasReason(reason));
}

/// Matches an OK StatusOr whose value matches `inner`.
MATCHER_P(IsOkAndHolds, inner, "is OK and holds a value that matches") {
  if (!arg.ok()) {
    *result_listener << arg.status();
    return false;
  }
  return testing::ExplainMatchResult(inner, *arg, result_listener);
}

}  // namespace pageferry

#define PAGEFERRY_TEST_CONCAT_INNER_(a, b) a##b
#define PAGEFERRY_TEST_CONCAT_(a, b) PAGEFERRY_TEST_CONCAT_INNER_(a, b)

// NOLINTBEGIN(bugprone-macro-parentheses): `lhs` may be a declaration.
/// Assigns the value of a StatusOr, or ends the test function with a failure.
#define ASSERT_OK_AND_ASSIGN(lhs, expr) \
  PAGEFERRY_TEST_ASSIGN_(PAGEFERRY_TEST_CONCAT_(test_status_or_, __LINE__), lhs, expr)
#define PAGEFERRY_TEST_ASSIGN_(temp, lhs, expr) \
  auto temp = (expr);                           \
  ASSERT_TRUE(temp.ok()) << temp.status();      \
  lhs = *std::move(temp)
// NOLINTEND(bugprone-macro-parentheses)
