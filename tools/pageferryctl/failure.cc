#include "tools/pageferryctl/failure.h"

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "pageferry/error/v1/error.pb.h"
#include "tools/pageferryctl/json.h"
#include "tools/pageferryctl/table.h"

namespace pageferry::ctl {

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  if (absl::IsNotFound(status)) return kExitNotFound;
  if (absl::IsDeadlineExceeded(status)) return kExitUnreachable;
  const bool unanswered = absl::IsUnavailable(status) && ReasonOf(status) == Reason::kUnspecified;
  return unanswered ? kExitUnreachable : kExitFailed;
}

std::string FailureText(absl::string_view command, const Failure& failure) {
  std::string text = absl::StrCat("pageferryctl ", command, ": ");
  if (!failure.address.empty()) absl::StrAppend(&text, failure.address, ": ");
  absl::StrAppend(&text, absl::StatusCodeToString(failure.status.code()));
  if (ReasonOf(failure.status) != Reason::kUnspecified) {
    absl::StrAppend(&text, " ", ReasonName(ReasonOf(failure.status)));
  }
  const std::string message =
      failure.status.message().empty() ? "no message" : std::string(failure.status.message());
  text = absl::StrCat(Printable(absl::StrCat(text, ": ", message)), "\n");
  for (const auto& [key, value] : MetadataOf(failure.status)) {
    absl::StrAppend(&text, Printable(absl::StrCat("  ", key, " ", value)), "\n");
  }
  return text;
}

std::string FailureJson(absl::string_view command, const Failure& failure, int exit_code) {
  error::v1::ErrorDetail detail;
  ToErrorDetail(failure.status, detail);
  Json json = {{"command", std::string(command)},
               {"address", failure.address},
               {"exit_code", exit_code},
               {"code_name", absl::StatusCodeToString(failure.status.code())}};
  json.update(ToJson(detail));
  return absl::StrCat(json.dump(-1, ' ', false, Json::error_handler_t::replace), "\n");
}

}  // namespace pageferry::ctl
