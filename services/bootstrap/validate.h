#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/common/ids.h"
#include "pageferry/bootstrap/v1/bootstrap.pb.h"
#include "services/bootstrap/records.h"
#include "services/bootstrap/room_directory.h"
#include "services/bootstrap/store.h"

/// Reads requests into our own types and refuses what bootstrap.proto does not allow: always
/// kInvalidArgument, with INVALID_FIELD (metadata "field", "value", "allowed"), UNKNOWN_ENUM,
/// TOO_LARGE or BAD_ENDPOINT. Pure; nothing here asks a resolver.
namespace pageferry::bootstrap {

/// What the operator allows, within the bounds of the contract.
struct RequestLimits {
  absl::Duration default_ttl = absl::Seconds(3);
  absl::Duration min_ttl = absl::Seconds(1);   ///< a wish below it is raised to it
  absl::Duration max_ttl = absl::Minutes(10);  ///< a wish above it is lowered to it
  bool allow_loopback_endpoints = false;
};

inline constexpr int kMaxBatch = 10'000;

absl::StatusOr<EngineKey> ReadKey(const v1::EngineKey& key);

absl::StatusOr<Claim> ReadRegister(const v1::RegisterRequest& request, const RequestLimits& limits);

absl::StatusOr<std::vector<LeaseId>> ReadKeepAlive(const v1::KeepAliveRequest& request);

absl::StatusOr<LeaseId> ReadDeregister(const v1::DeregisterRequest& request);

absl::StatusOr<EngineListQuery> ReadListEngines(const v1::ListEnginesRequest& request);

/// The token that asks for a page that starts at `key`.
std::string MakePageToken(const EngineKey& key);

struct ResolveQuery {
  EngineKey key;
  std::vector<RankCoordinate> coordinates;
  absl::Duration wait;
};
absl::StatusOr<ResolveQuery> ReadResolveRanks(const v1::ResolveRanksRequest& request);

struct PlaceQuery {
  EngineKey key;
  std::vector<Placement> placements;
  absl::Duration ttl;
};
absl::StatusOr<PlaceQuery> ReadPlaceRooms(const v1::PlaceRoomsRequest& request);

struct LookupQuery {
  EngineKey key;
  std::vector<RoomId> rooms;
  absl::Duration wait;
};
absl::StatusOr<LookupQuery> ReadLookupRooms(const v1::LookupRoomsRequest& request);

struct WatchQuery {
  std::optional<NamespaceName> name_space;  ///< nothing: all
  std::vector<EngineId> engines;            ///< none: all
  TableVersion resume;
  bool with_ranks = false;
};
absl::StatusOr<WatchQuery> ReadWatchEngines(const v1::WatchEnginesRequest& request);

/// Whether an endpoint of the metadata's form may be advertised to other hosts.
/// kInvalidArgument, BAD_ENDPOINT with "endpoint" and "field".
absl::Status CheckEndpoint(const Endpoint& endpoint, absl::string_view field, bool allow_loopback);

}  // namespace pageferry::bootstrap
