#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/transfer-agent/bootstrap_client.h"

namespace pageferry::agent {

/// A service whose answers the test gives.
class FakeBootstrap final : public BootstrapClient {
 public:
  struct Watch {
    std::vector<EngineId> engines;
    TableVersion resume;
    absl::AnyInvocable<void(TableEvent)> on_event;
    EndFunction on_end;
  };

  void Register(const Registration& registration, absl::Duration,
                Done<absl::StatusOr<Claim>> done) override {
    registrations.push_back(registration);
    claim = std::move(done);
  }
  void Deregister(LeaseId lease, absl::Duration, Done<absl::Status> done) override {
    deregistered.push_back(lease);
    done(absl::OkStatus());
  }
  std::unique_ptr<KeepAliveStream> OpenKeepAlive(
      absl::AnyInvocable<void(std::vector<Renewal>)> renewals, EndFunction end) override {
    ++keep_alives;
    on_renewals = std::move(renewals);
    on_keep_alive_end = std::move(end);
    class Handle final : public KeepAliveStream {
     public:
      explicit Handle(FakeBootstrap& owner) : owner_(owner) {}
      void Renew(LeaseId lease) override { owner_.renewed.push_back(lease); }

     private:
      FakeBootstrap& owner_;
    };
    return std::make_unique<Handle>(*this);
  }
  std::unique_ptr<Stream> OpenWatch(const NamespaceName&, const std::vector<EngineId>& engines,
                                    TableVersion resume,
                                    absl::AnyInvocable<void(TableEvent)> on_event,
                                    EndFunction on_end) override {
    watches.push_back({.engines = engines,
                       .resume = resume,
                       .on_event = std::move(on_event),
                       .on_end = std::move(on_end)});
    return std::make_unique<Stream>();
  }
  void PlaceRooms(const NamespaceName&, const EngineId&,
                  const std::vector<std::pair<RoomId, int64_t>>& rooms, absl::Duration,
                  Done<absl::Status> done) override {
    placed.push_back(rooms);
    on_placed = std::move(done);
  }
  void LookupRoom(const NamespaceName&, const EngineId&, RoomId, absl::Duration,
                  Done<absl::StatusOr<int64_t>>) override {}

  std::vector<Registration> registrations;
  Done<absl::StatusOr<Claim>> claim;
  std::vector<LeaseId> deregistered;
  std::vector<LeaseId> renewed;
  int keep_alives = 0;
  absl::AnyInvocable<void(std::vector<Renewal>)> on_renewals;
  EndFunction on_keep_alive_end;
  std::vector<Watch> watches;
  std::vector<std::vector<std::pair<RoomId, int64_t>>> placed;
  Done<absl::Status> on_placed;
};

}  // namespace pageferry::agent
