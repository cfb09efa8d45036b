#include "libs/common/grpc_status.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"
#include "libs/common/error.h"
#include "libs/common/utf8.h"
#include "pageferry/error/v1/error.pb.h"

namespace pageferry {
namespace {

using error::v1::ErrorDetail;

constexpr char kTruncated[] = "truncated";
constexpr size_t kMaxEntries = 32;
constexpr size_t kMaxTrailerMessageBytes = 1024;
constexpr size_t kMaxTrailerDetailBytes = 4096;

#define PAGEFERRY_SAME_CODE(absl_code, grpc_code)                \
  static_assert(static_cast<int>(absl::StatusCode::absl_code) == \
                static_cast<int>(grpc::StatusCode::grpc_code))
PAGEFERRY_SAME_CODE(kOk, OK);
PAGEFERRY_SAME_CODE(kCancelled, CANCELLED);
PAGEFERRY_SAME_CODE(kUnknown, UNKNOWN);
PAGEFERRY_SAME_CODE(kInvalidArgument, INVALID_ARGUMENT);
PAGEFERRY_SAME_CODE(kDeadlineExceeded, DEADLINE_EXCEEDED);
PAGEFERRY_SAME_CODE(kNotFound, NOT_FOUND);
PAGEFERRY_SAME_CODE(kAlreadyExists, ALREADY_EXISTS);
PAGEFERRY_SAME_CODE(kPermissionDenied, PERMISSION_DENIED);
PAGEFERRY_SAME_CODE(kResourceExhausted, RESOURCE_EXHAUSTED);
PAGEFERRY_SAME_CODE(kFailedPrecondition, FAILED_PRECONDITION);
PAGEFERRY_SAME_CODE(kAborted, ABORTED);
PAGEFERRY_SAME_CODE(kOutOfRange, OUT_OF_RANGE);
PAGEFERRY_SAME_CODE(kUnimplemented, UNIMPLEMENTED);
PAGEFERRY_SAME_CODE(kInternal, INTERNAL);
PAGEFERRY_SAME_CODE(kUnavailable, UNAVAILABLE);
PAGEFERRY_SAME_CODE(kDataLoss, DATA_LOSS);
PAGEFERRY_SAME_CODE(kUnauthenticated, UNAUTHENTICATED);
#undef PAGEFERRY_SAME_CODE

size_t Size(const std::pair<const std::string, std::string>& entry) {
  return entry.first == kTruncated ? 0 : entry.first.size() + entry.second.size();
}

void FitTrailer(ErrorDetail& detail) {
  detail.set_message(ValidUtf8(detail.message(), kMaxTrailerMessageBytes));
  if (detail.ByteSizeLong() <= kMaxTrailerDetailBytes) return;
  std::map<std::string, std::string> kept(detail.metadata().begin(), detail.metadata().end());
  kept[kTruncated] = "true";
  do {
    const auto longest = std::ranges::max_element(kept, {}, &Size);
    if (kept.size() <= kMaxEntries && longest->second.size() > 64) {
      longest->second = ValidUtf8(longest->second, longest->second.size() / 2);
    } else {
      kept.erase(longest);
    }
    *detail.mutable_metadata() = {kept.begin(), kept.end()};
  } while (detail.ByteSizeLong() > kMaxTrailerDetailBytes);
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const std::string message = ValidUtf8(status.message(), kMaxTrailerMessageBytes);
  if (ReasonOf(status) == Reason::kUnspecified) return {code, message};
  ErrorDetail detail;
  ToErrorDetail(status, detail);
  FitTrailer(detail);
  return {code, message, detail.SerializeAsString()};
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int number = static_cast<int>(status.error_code());
  const auto code = number >= 1 && number <= 16 ? static_cast<absl::StatusCode>(number)
                                                : absl::StatusCode::kUnknown;
  ErrorDetail detail;
  const std::string details = status.error_details();
  if (details.empty() || !detail.ParseFromString(details) || detail.reason() == 0) {
    return {code, status.error_message()};
  }
  detail.set_code(static_cast<int>(code));
  detail.set_message(status.error_message());
  return FromErrorDetail(detail);
}

}  // namespace pageferry
