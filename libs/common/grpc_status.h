#pragma once

#include "absl/status/status.h"

namespace grpc {
class Status;
}  // namespace grpc

namespace pageferry {

/// The gRPC form of `status`: same code and message; where the status carries a reason, the binary
/// details hold a serialized `pageferry.error.v1.ErrorDetail`.
///
/// Details and message travel in HTTP/2 trailers, for which peers allow 8 KiB in all by default, so
/// the message is cut at 1 KiB and the longest metadata values until the details take at most 4 KiB
/// (frames have no such limit); "truncated" is then added to the metadata.
/// Include <grpcpp/support/status.h> where this is called.
grpc::Status ToGrpcStatus(const absl::Status& status);

/// The status that a call ended with. Codes that gRPC does not define become UNKNOWN; details that
/// do not parse are dropped, since clients decide by the code then.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace pageferry
