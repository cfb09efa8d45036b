#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pageferry::error::v1 {
class ErrorDetail;
}  // namespace pageferry::error::v1

namespace pageferry {

/// Why something was refused or failed. Each value has the number of `ErrorReason` in
/// protos/pageferry/error/v1/error.proto, which says its code, its metadata and what a client does.
/// A newer peer may send a number that is not listed here: it is kept, and its code decides.
enum class Reason : int32_t {
  kUnspecified = 0,
  kInvalidField = 1,
  kUnknownEnum = 2,
  kTooLarge = 3,
  kOutOfOrder = 4,
  kUnsupported = 5,
  kProtocolVersion = 6,
  kLimitReached = 7,
  kDraining = 8,
  kInternal = 9,
  kUnauthenticated = 20,
  kNotPermitted = 21,
  kBadCapability = 22,
  kPolicy = 23,
  kShapeMismatch = 40,
  kProfileMismatch = 41,
  kSuperseded = 42,
  kEngineNotReady = 43,
  kEngineNotFound = 44,
  kWarmingUp = 45,
  kLeaseNotFound = 46,
  kRoomNotPlaced = 47,
  kCompacted = 48,
  kSlowConsumer = 49,
  kBadEndpoint = 50,
  kRoomPlacedElsewhere = 51,
  kBootstrapUnreachable = 52,
  kOutOfMemory = 60,
  kPoolExists = 61,
  kPoolNotFound = 62,
  kInUse = 63,
  kBadHandle = 64,
  kEngineNotRegistered = 65,
  kEngineAlreadyRegistered = 66,
  kDuplicateRoom = 80,
  kRoomNotFound = 81,
  kPeerAborted = 82,
  kAborted = 83,
  kOperatorAborted = 84,
  kDeadline = 85,
  kPeerLost = 86,
  kEngineLost = 87,
  kPageCountMismatch = 88,
  kBadPages = 89,
  kStaleEpoch = 90,
  kStaleAttempt = 91,
  kSealBroken = 92,
  kChecksumMismatch = 93,
  kEnginesIncompatible = 94,
  kWrongDpRank = 95,
  kStateMismatch = 96,
  kTransport = 97,
  kNoTransport = 98,
  kRecomputeFailed = 99,
  kPeerEngineFailed = 100,
};

/// "SHAPE_MISMATCH"; "UNKNOWN" for a number that this release does not know. Lives for ever.
absl::string_view ReasonName(Reason reason);

/// The variable parts of an error's message, by stable lower_snake keys.
using ErrorMetadata = std::map<std::string, std::string>;

/// An error with a reason, kept in the status as a payload, so that it survives `Annotate` and the
/// conversion to gRPC. `code` must not be OK: it becomes INTERNAL. To keep the bounds of
/// `ErrorDetail`, the message is cut at 4 KiB, values at 1 KiB ("missing": 8 KiB), and only the
/// first 32 keys stay; bytes that are not UTF-8 become '?'.
absl::Status MakeError(absl::StatusCode code, Reason reason, absl::string_view message,
                       const ErrorMetadata& metadata = {});

/// INVALID_ARGUMENT, INVALID_FIELD with the metadata that this reason promises.
absl::Status InvalidField(absl::string_view field, absl::string_view value,
                          absl::string_view allowed);

/// The reason that `status` carries; kUnspecified where there is none.
Reason ReasonOf(const absl::Status& status);

/// The metadata that `status` carries; empty where there is none.
ErrorMetadata MetadataOf(const absl::Status& status);

/// Fills `detail` for a frame: code, reason, message and metadata of `status`. OK clears it.
void ToErrorDetail(const absl::Status& status, error::v1::ErrorDetail& detail);

/// The status that a frame's `detail` tells. A code outside 1 to 16 becomes UNKNOWN; the bounds of
/// `MakeError` are applied to what the peer sent.
absl::Status FromErrorDetail(const error::v1::ErrorDetail& detail);

}  // namespace pageferry
