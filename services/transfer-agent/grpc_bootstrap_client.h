#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libs/common/grpc_runtime.h"
#include "services/transfer-agent/bootstrap_client.h"
#include "services/transfer-agent/loop.h"

namespace pageferry::agent {

/// The bootstrap service over gRPC, at one of several addresses: after a failure to reach one, the
/// next is used.
///
/// Loop-confined. Borrows the loop, which must run until every call has ended (WaitUntilEnded).
class GrpcBootstrapClient final : public BootstrapClient {
 public:
  /// At least one address ("host:port").
  GrpcBootstrapClient(Loop& loop, std::vector<std::string> addresses,
                      const ChannelOptions& options);
  ~GrpcBootstrapClient() override;

  void Register(const Registration& registration, absl::Duration timeout,
                Done<absl::StatusOr<Claim>> done) override;
  void Deregister(LeaseId lease, absl::Duration timeout, Done<absl::Status> done) override;
  std::unique_ptr<KeepAliveStream> OpenKeepAlive(
      absl::AnyInvocable<void(std::vector<Renewal>)> on_renewals, EndFunction on_end) override;
  std::unique_ptr<Stream> OpenWatch(const NamespaceName& name_space,
                                    const std::vector<EngineId>& engines,
                                    TableVersion resume_version,
                                    absl::AnyInvocable<void(TableEvent)> on_event,
                                    EndFunction on_end) override;
  void PlaceRooms(const NamespaceName& name_space, const EngineId& engine,
                  const std::vector<std::pair<RoomId, int64_t>>& rooms, absl::Duration timeout,
                  Done<absl::Status> done) override;
  void LookupRoom(const NamespaceName& name_space, const EngineId& engine, RoomId room,
                  absl::Duration wait, Done<absl::StatusOr<int64_t>> done) override;

  /// Cancels what runs and waits until no call is left, or until `deadline`. Not on the loop.
  bool WaitUntilEnded(MonotonicTime deadline);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace pageferry::agent
