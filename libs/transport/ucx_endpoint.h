#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "libs/transport/pull_wire.h"
#include "libs/transport/ucx_worker.h"

namespace pageferry::transport {

/// The bytes of a message struct, for `UcxEndpoint::Send`.
template <class Message>
std::string BytesOf(const Message& message) {
  return {reinterpret_cast<const char*>(&message), sizeof(message)};
}

/// This end of a connection to another worker. On the worker's thread only.
///
/// Owns messages until they have been sent. Must be closed, and closed for good, before it goes.
class UcxEndpoint {
 public:
  /// `failed` runs at most once, outside of UCX calls: the peer went, or the network. Nothing is
  /// sent any more then. kFailedPrecondition, NO_TRANSPORT.
  static absl::StatusOr<std::unique_ptr<UcxEndpoint>> Create(
      UcxWorker& worker, const std::string& address, absl::AnyInvocable<void(absl::Status)> failed);
  UcxEndpoint(const UcxEndpoint&) = delete;
  UcxEndpoint& operator=(const UcxEndpoint&) = delete;
  ~UcxEndpoint() = default;

  /// Sends `header` and the bytes of `parts`, which must stay as they are until `sent` runs: once
  /// nobody reads them any more, also when the message was lost; perhaps inside this call.
  void Send(wire::MessageId id, std::string header,
            std::vector<absl::Span<const std::byte>> parts = {},
            absl::AnyInvocable<void()> sent = nullptr);

  /// Ends the connection at once; what was not sent is dropped. Each `closed` runs when nothing of
  /// this endpoint is in use by UCX, outside of UCX calls.
  void Close(absl::AnyInvocable<void()> closed);

 private:
  struct Message;

  explicit UcxEndpoint(UcxWorker& worker) : worker_(worker) {}

  void OnFailed(ucs_status_t status);
  void Finish(Message* message);
  void MayBeClosed();

  UcxWorker& worker_;
  absl::AnyInvocable<void(absl::Status)> failed_;
  ucp_ep_h ep_ = nullptr;
  bool broken_ = false;
  bool closing_ = false;
  bool ep_gone_ = false;
  bool counted_out_ = false;
  int64_t open_ = 0;  // messages that UCX has
  std::vector<absl::AnyInvocable<void()>> closed_;
};

}  // namespace pageferry::transport
