#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pageferry::ctl {

/// How the program ends; docs/pageferryctl.md promises the numbers.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNotFound = 3;
inline constexpr int kExitUnreachable = 4;

/// A call that failed, at `address`.
struct Failure {
  std::string address;
  absl::Status status;
};

/// NOT_FOUND is 3. DEADLINE_EXCEEDED is 4, and UNAVAILABLE where no service said why: then nobody
/// answered. Everything else is 1.
int ExitCodeOf(const absl::Status& status);

/// For people, on stderr: one line with code, reason and message, and one for each metadata entry.
std::string FailureText(absl::string_view command, const Failure& failure);

/// For programs, on stderr: one line of JSON with the fields of ErrorDetail, and "command",
/// "address", "code_name", "exit_code".
std::string FailureJson(absl::string_view command, const Failure& failure, int exit_code);

}  // namespace pageferry::ctl
