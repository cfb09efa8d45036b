#include "libs/common/error.h"

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "libs/common/utf8.h"
#include "pageferry/error/v1/error.pb.h"

namespace pageferry {
namespace {

using error::v1::ErrorDetail;
using error::v1::ErrorReason;

constexpr absl::string_view kPayloadUrl = "type.googleapis.com/pageferry.error.v1.ErrorDetail";
constexpr absl::string_view kReasonPrefix = "ERROR_REASON_";
constexpr size_t kMaxMessageBytes = 4096;
constexpr size_t kMaxValueBytes = 1024;
constexpr size_t kMaxMissingBytes = 8192;
constexpr size_t kMaxEntries = 32;

#define PAGEFERRY_SAME_NUMBER(reason, proto_reason) \
  static_assert(static_cast<int>(Reason::reason) == error::v1::ErrorReason::proto_reason)
PAGEFERRY_SAME_NUMBER(kUnspecified, ERROR_REASON_UNSPECIFIED);
PAGEFERRY_SAME_NUMBER(kInvalidField, ERROR_REASON_INVALID_FIELD);
PAGEFERRY_SAME_NUMBER(kUnknownEnum, ERROR_REASON_UNKNOWN_ENUM);
PAGEFERRY_SAME_NUMBER(kTooLarge, ERROR_REASON_TOO_LARGE);
PAGEFERRY_SAME_NUMBER(kOutOfOrder, ERROR_REASON_OUT_OF_ORDER);
PAGEFERRY_SAME_NUMBER(kUnsupported, ERROR_REASON_UNSUPPORTED);
PAGEFERRY_SAME_NUMBER(kProtocolVersion, ERROR_REASON_PROTOCOL_VERSION);
PAGEFERRY_SAME_NUMBER(kLimitReached, ERROR_REASON_LIMIT_REACHED);
PAGEFERRY_SAME_NUMBER(kDraining, ERROR_REASON_DRAINING);
PAGEFERRY_SAME_NUMBER(kInternal, ERROR_REASON_INTERNAL);
PAGEFERRY_SAME_NUMBER(kUnauthenticated, ERROR_REASON_UNAUTHENTICATED);
PAGEFERRY_SAME_NUMBER(kNotPermitted, ERROR_REASON_NOT_PERMITTED);
PAGEFERRY_SAME_NUMBER(kBadCapability, ERROR_REASON_BAD_CAPABILITY);
PAGEFERRY_SAME_NUMBER(kPolicy, ERROR_REASON_POLICY);
PAGEFERRY_SAME_NUMBER(kShapeMismatch, ERROR_REASON_SHAPE_MISMATCH);
PAGEFERRY_SAME_NUMBER(kProfileMismatch, ERROR_REASON_PROFILE_MISMATCH);
PAGEFERRY_SAME_NUMBER(kSuperseded, ERROR_REASON_SUPERSEDED);
PAGEFERRY_SAME_NUMBER(kEngineNotReady, ERROR_REASON_ENGINE_NOT_READY);
PAGEFERRY_SAME_NUMBER(kEngineNotFound, ERROR_REASON_ENGINE_NOT_FOUND);
PAGEFERRY_SAME_NUMBER(kWarmingUp, ERROR_REASON_WARMING_UP);
PAGEFERRY_SAME_NUMBER(kLeaseNotFound, ERROR_REASON_LEASE_NOT_FOUND);
PAGEFERRY_SAME_NUMBER(kRoomNotPlaced, ERROR_REASON_ROOM_NOT_PLACED);
PAGEFERRY_SAME_NUMBER(kCompacted, ERROR_REASON_COMPACTED);
PAGEFERRY_SAME_NUMBER(kSlowConsumer, ERROR_REASON_SLOW_CONSUMER);
PAGEFERRY_SAME_NUMBER(kBadEndpoint, ERROR_REASON_BAD_ENDPOINT);
PAGEFERRY_SAME_NUMBER(kRoomPlacedElsewhere, ERROR_REASON_ROOM_PLACED_ELSEWHERE);
PAGEFERRY_SAME_NUMBER(kBootstrapUnreachable, ERROR_REASON_BOOTSTRAP_UNREACHABLE);
PAGEFERRY_SAME_NUMBER(kOutOfMemory, ERROR_REASON_OUT_OF_MEMORY);
PAGEFERRY_SAME_NUMBER(kPoolExists, ERROR_REASON_POOL_EXISTS);
PAGEFERRY_SAME_NUMBER(kPoolNotFound, ERROR_REASON_POOL_NOT_FOUND);
PAGEFERRY_SAME_NUMBER(kInUse, ERROR_REASON_IN_USE);
PAGEFERRY_SAME_NUMBER(kBadHandle, ERROR_REASON_BAD_HANDLE);
PAGEFERRY_SAME_NUMBER(kEngineNotRegistered, ERROR_REASON_ENGINE_NOT_REGISTERED);
PAGEFERRY_SAME_NUMBER(kEngineAlreadyRegistered, ERROR_REASON_ENGINE_ALREADY_REGISTERED);
PAGEFERRY_SAME_NUMBER(kDuplicateRoom, ERROR_REASON_DUPLICATE_ROOM);
PAGEFERRY_SAME_NUMBER(kRoomNotFound, ERROR_REASON_ROOM_NOT_FOUND);
PAGEFERRY_SAME_NUMBER(kPeerAborted, ERROR_REASON_PEER_ABORTED);
PAGEFERRY_SAME_NUMBER(kAborted, ERROR_REASON_ABORTED);
PAGEFERRY_SAME_NUMBER(kOperatorAborted, ERROR_REASON_OPERATOR_ABORTED);
PAGEFERRY_SAME_NUMBER(kDeadline, ERROR_REASON_DEADLINE);
PAGEFERRY_SAME_NUMBER(kPeerLost, ERROR_REASON_PEER_LOST);
PAGEFERRY_SAME_NUMBER(kEngineLost, ERROR_REASON_ENGINE_LOST);
PAGEFERRY_SAME_NUMBER(kPageCountMismatch, ERROR_REASON_PAGE_COUNT_MISMATCH);
PAGEFERRY_SAME_NUMBER(kBadPages, ERROR_REASON_BAD_PAGES);
PAGEFERRY_SAME_NUMBER(kStaleEpoch, ERROR_REASON_STALE_EPOCH);
PAGEFERRY_SAME_NUMBER(kStaleAttempt, ERROR_REASON_STALE_ATTEMPT);
PAGEFERRY_SAME_NUMBER(kSealBroken, ERROR_REASON_SEAL_BROKEN);
PAGEFERRY_SAME_NUMBER(kChecksumMismatch, ERROR_REASON_CHECKSUM_MISMATCH);
PAGEFERRY_SAME_NUMBER(kEnginesIncompatible, ERROR_REASON_ENGINES_INCOMPATIBLE);
PAGEFERRY_SAME_NUMBER(kWrongDpRank, ERROR_REASON_WRONG_DP_RANK);
PAGEFERRY_SAME_NUMBER(kStateMismatch, ERROR_REASON_STATE_MISMATCH);
PAGEFERRY_SAME_NUMBER(kTransport, ERROR_REASON_TRANSPORT);
PAGEFERRY_SAME_NUMBER(kNoTransport, ERROR_REASON_NO_TRANSPORT);
PAGEFERRY_SAME_NUMBER(kRecomputeFailed, ERROR_REASON_RECOMPUTE_FAILED);
PAGEFERRY_SAME_NUMBER(kPeerEngineFailed, ERROR_REASON_PEER_ENGINE_FAILED);
#undef PAGEFERRY_SAME_NUMBER
static_assert(error::v1::ErrorReason_ARRAYSIZE == static_cast<int>(Reason::kPeerEngineFailed) + 1,
              "a reason was added to error.proto: add it to error.h and above");

void AddMetadata(absl::string_view key, absl::string_view value, ErrorDetail& detail) {
  auto& entries = *detail.mutable_metadata();
  if (entries.size() >= kMaxEntries) return;
  const size_t bound = key == "missing" ? kMaxMissingBytes : kMaxValueBytes;
  entries[ValidUtf8(key, kMaxValueBytes)] = ValidUtf8(value, bound);
}

std::optional<ErrorDetail> Payload(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayloadUrl);
  ErrorDetail detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

absl::Status WithPayload(absl::StatusCode code, absl::string_view message,
                         const ErrorDetail& detail) {
  absl::Status status(code, ValidUtf8(message, kMaxMessageBytes));
  status.SetPayload(kPayloadUrl, absl::Cord(detail.SerializeAsString()));
  return status;
}

}  // namespace

absl::string_view ReasonName(Reason reason) {
  const absl::string_view name = ErrorReason_Name(static_cast<ErrorReason>(reason));
  return name.empty() ? "UNKNOWN" : name.substr(kReasonPrefix.size());
}

absl::Status MakeError(absl::StatusCode code, Reason reason, absl::string_view message,
                       const ErrorMetadata& metadata) {
  ErrorDetail detail;
  detail.set_reason(static_cast<ErrorReason>(reason));
  for (const auto& [key, value] : metadata) AddMetadata(key, value, detail);
  return WithPayload(code == absl::StatusCode::kOk ? absl::StatusCode::kInternal : code, message,
                     detail);
}

absl::Status InvalidField(absl::string_view field, absl::string_view value,
                          absl::string_view allowed) {
  return MakeError(absl::StatusCode::kInvalidArgument, Reason::kInvalidField,
                   absl::StrCat(field, " is ", value, ", allowed is ", allowed),
                   {{"field", std::string(field)},
                    {"value", std::string(value)},
                    {"allowed", std::string(allowed)}});
}

Reason ReasonOf(const absl::Status& status) {
  const auto detail = Payload(status);
  return detail.has_value() ? static_cast<Reason>(detail->reason()) : Reason::kUnspecified;
}

ErrorMetadata MetadataOf(const absl::Status& status) {
  const auto detail = Payload(status);
  if (!detail.has_value()) return {};
  return {detail->metadata().begin(), detail->metadata().end()};
}

void ToErrorDetail(const absl::Status& status, ErrorDetail& detail) {
  detail.Clear();
  if (status.ok()) return;
  if (auto payload = Payload(status)) detail = *std::move(payload);
  detail.set_code(static_cast<int>(status.code()));
  detail.set_message(ValidUtf8(status.message(), kMaxMessageBytes));
}

absl::Status FromErrorDetail(const ErrorDetail& detail) {
  const bool known = detail.code() >= 1 && detail.code() <= 16;
  const auto code =
      known ? static_cast<absl::StatusCode>(detail.code()) : absl::StatusCode::kUnknown;
  ErrorDetail kept;
  kept.set_reason(detail.reason());
  for (const auto& [key, value] : detail.metadata()) AddMetadata(key, value, kept);
  return WithPayload(code, detail.message(), kept);
}

}  // namespace pageferry
