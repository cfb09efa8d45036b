#include "services/transfer-agent/convert_peer.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/status.h"
#include "services/transfer-agent/convert_room.h"
#include "services/transfer-agent/validate.h"

namespace pageferry::agent {
namespace {

constexpr int64_t kMaxPages = int64_t{1} << 40;
constexpr int64_t kMaxAddressBytes = 64 << 10;

RoomKey RawRoom(const peer_pb::RoomKey& proto) {
  return {RoomId(proto.room_id()), Attempt(proto.attempt())};
}

absl::StatusOr<RoomKey> RoomFromProto(const peer_pb::RoomKey& proto) {
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("room.room_id", proto.room_id(), 0, INT64_MAX));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("room.attempt", proto.attempt(), 1, INT32_MAX));
  return RawRoom(proto);
}

absl::StatusOr<PeerFrame> Parse(const peer_pb::Grant& proto) {
  Grant grant;
  PAGEFERRY_ASSIGN_OR_RETURN(grant.room, RoomFromProto(proto.room()));
  PAGEFERRY_ASSIGN_OR_RETURN(grant.runs, FromProto(proto.page_runs()));
  PAGEFERRY_ASSIGN_OR_RETURN(grant.states, FromProto(proto.states()));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("aux_slot", proto.aux_slot(), 0, kMaxAuxSlot));
  PAGEFERRY_RETURN_IF_ERROR(
      CheckRange("cached_prefix_pages", proto.cached_prefix_pages(), 0, kMaxPages));
  PAGEFERRY_RETURN_IF_ERROR(
      CheckRange("decode_rank_count", proto.decode_rank_count(), 1, kMaxRanks));
  PAGEFERRY_RETURN_IF_ERROR(CheckRoomExtras(proto.priority(), proto.capability(),
                                            proto.traceparent(), proto.tracestate()));
  grant.timeout = absl::Seconds(300);
  if (proto.has_timeout()) {
    PAGEFERRY_ASSIGN_OR_RETURN(
        grant.timeout, CheckDuration("timeout", proto.timeout().seconds(), proto.timeout().nanos(),
                                     absl::ZeroDuration(), absl::Hours(24)));
  }
  if (proto.has_aux_slot()) grant.aux_slot = proto.aux_slot();
  grant.cached_prefix_pages = proto.cached_prefix_pages();
  grant.dummy = proto.dummy();
  grant.decode_rank_count = proto.decode_rank_count();
  grant.priority = proto.priority();
  grant.capability = proto.capability();
  grant.trace = {.traceparent = proto.traceparent(), .tracestate = proto.tracestate()};
  grant.checksum = proto.checksum();
  return grant;
}

template <class Frame, class Proto>
absl::StatusOr<Frame> ParseTotals(const Proto& proto) {
  Frame frame;
  PAGEFERRY_ASSIGN_OR_RETURN(frame.room, RoomFromProto(proto.room()));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("pages", proto.pages(), 0, kMaxPages));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("bytes", proto.bytes(), 0, INT64_MAX));
  frame.pages = proto.pages();
  frame.bytes = ByteCount(proto.bytes());
  return frame;
}

absl::StatusOr<PeerFrame> Parse(const peer_pb::Taken& proto) {
  PAGEFERRY_ASSIGN_OR_RETURN(Taken taken, ParseTotals<Taken>(proto));
  taken.complete = proto.complete();
  return taken;
}

absl::StatusOr<PeerFrame> Parse(const peer_pb::Completed& proto) {
  return ParseTotals<Completed>(proto);
}

absl::StatusOr<PeerFrame> Parse(const peer_pb::Offer& proto) {
  Offer offer;
  PAGEFERRY_ASSIGN_OR_RETURN(offer.room, RoomFromProto(proto.room()));
  PAGEFERRY_ASSIGN_OR_RETURN(offer.runs, FromProto(proto.page_runs()));
  PAGEFERRY_ASSIGN_OR_RETURN(offer.states, FromProto(proto.states()));
  PAGEFERRY_RETURN_IF_ERROR(
      CheckRange("first_granted_index", proto.first_granted_index(), 0, kMaxPages));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("aux_slot", proto.aux_slot(), 0, kMaxAuxSlot));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("seal.index", proto.seal().index(), 0, INT32_MAX));
  offer.first_granted_index = proto.first_granted_index();
  offer.last = proto.last();
  if (proto.has_aux_slot()) offer.aux_slot = proto.aux_slot();
  offer.seal = {.region = RegionId(proto.seal().region_id()),
                .index = proto.seal().index(),
                .value = proto.seal().value()};
  return offer;
}

/// The reason that a frame gives; a frame that forgot it still ends what it names.
absl::Status ErrorOf(const error::v1::ErrorDetail& detail, absl::StatusCode code, Reason reason) {
  absl::Status status = FromErrorDetail(detail);
  if (!status.ok() && detail.code() != 0) return status;
  return MakeError(code, reason, "the peer gave no reason");
}

absl::StatusOr<PeerFrame> Parse(const peer_pb::Failed& proto) {
  PAGEFERRY_ASSIGN_OR_RETURN(const RoomKey room, RoomFromProto(proto.room()));
  return Failed{.room = room,
                .error = ErrorOf(proto.error(), absl::StatusCode::kUnknown, Reason::kInternal)};
}

absl::StatusOr<PeerFrame> Parse(const peer_pb::Abort& proto) {
  PAGEFERRY_ASSIGN_OR_RETURN(const RoomKey room, RoomFromProto(proto.room()));
  PAGEFERRY_RETURN_IF_ERROR(CheckSize("capability", proto.capability(), kMaxCapabilityBytes));
  return Abort{.room = room,
               .error = ErrorOf(proto.error(), absl::StatusCode::kAborted, Reason::kPeerAborted),
               .capability = proto.capability()};
}

absl::StatusOr<PeerFrame> Parse(const peer_pb::AbortReply& proto) {
  PAGEFERRY_ASSIGN_OR_RETURN(const RoomKey room, RoomFromProto(proto.room()));
  return AbortReply{.room = room, .drained = proto.drained(), .unknown = proto.unknown()};
}

absl::StatusOr<PeerFrame> Parse(const peer_pb::Refused& proto) {
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("sequence", proto.sequence(), 0, INT64_MAX));
  return Refused{.sequence = Sequence(proto.sequence()),
                 .room = RawRoom(proto.room()),
                 .error = ErrorOf(proto.error(), absl::StatusCode::kUnknown, Reason::kInternal)};
}

absl::StatusOr<PeerFrame> Parse(const peer_pb::GoAway& proto) {
  return GoAway{.error = ErrorOf(proto.error(), absl::StatusCode::kUnavailable, Reason::kDraining)};
}

template <class Proto>
RoomKey RoomOf(const Proto& proto) {
  if constexpr (requires { proto.room(); }) {
    return RawRoom(proto.room());
  } else {
    return {};
  }
}

template <class Proto>
auto Content(const Proto& proto) -> decltype(PeerInput::content) {
  absl::StatusOr<PeerFrame> frame = Parse(proto);
  if (frame.ok()) return *std::move(frame);
  return BadFrame{.room = RoomOf(proto), .error = frame.status()};
}

decltype(PeerInput::content) Unsupported(absl::string_view feature, const RoomKey& room = {}) {
  return BadFrame{.room = room,
                  .error = MakeError(absl::StatusCode::kUnimplemented, Reason::kUnsupported,
                                     absl::StrCat("this release does not know ", feature),
                                     {{"feature", std::string(feature)}})};
}

absl::StatusOr<transport::LocalData> LocalDataFromProto(const peer_pb::LocalData& proto) {
  constexpr absl::string_view kField = "regions.local.data";
  PAGEFERRY_RETURN_IF_ERROR(CheckSize(absl::StrCat(kField, ".shm_name"), proto.shm_name(), 255));
  PAGEFERRY_RETURN_IF_ERROR(
      CheckRange(absl::StrCat(kField, ".process_id"), proto.process_id(), 1, INT32_MAX));
  PAGEFERRY_RETURN_IF_ERROR(
      CheckRange(absl::StrCat(kField, ".file_descriptor"), proto.file_descriptor(), 0, INT32_MAX));
  PAGEFERRY_RETURN_IF_ERROR(
      CheckRange(absl::StrCat(kField, ".offset_bytes"), proto.offset_bytes(), 0, INT64_MAX));
  return transport::LocalData{.shm_name = proto.shm_name(),
                              .pid = proto.process_id(),
                              .fd = proto.file_descriptor(),
                              .device = proto.device(),
                              .inode = proto.inode(),
                              .offset = ByteCount(proto.offset_bytes())};
}

absl::StatusOr<std::vector<transport::RemoteRegion>> RegionsFromProto(
    const google::protobuf::RepeatedPtrField<peer_pb::Region>& protos) {
  PAGEFERRY_RETURN_IF_ERROR(CheckCount("regions", protos.size(), kMaxRegions));
  std::vector<transport::RemoteRegion> regions;
  std::set<int64_t> seen;
  for (const peer_pb::Region& proto : protos) {
    PAGEFERRY_RETURN_IF_ERROR(CheckRange("regions.region_id", proto.region_id(), 1, INT64_MAX));
    PAGEFERRY_RETURN_IF_ERROR(CheckRange("regions.size_bytes", proto.size_bytes(), 1, INT64_MAX));
    PAGEFERRY_RETURN_IF_ERROR(CheckCount("regions.remote_keys", proto.remote_keys_size(), 16));
    if (!seen.insert(proto.region_id()).second) {
      return InvalidField("regions.region_id", absl::StrCat(proto.region_id()), "each region once");
    }
    transport::RemoteRegion region{.id = RegionId(proto.region_id()),
                                   .size = ByteCount(proto.size_bytes()),
                                   .remote_address = proto.remote_address()};
    for (const std::string& key : proto.remote_keys()) {
      PAGEFERRY_RETURN_IF_ERROR(CheckSize("regions.remote_keys", key, 4096));
      region.remote_keys.push_back(key);
    }
    if (proto.has_local()) {
      const peer_pb::LocalRegion& local = proto.local();
      PAGEFERRY_RETURN_IF_ERROR(CheckSize("regions.local.shm_name", local.shm_name(), 255));
      PAGEFERRY_RETURN_IF_ERROR(
          CheckRange("regions.local.mapping_bytes", local.mapping_bytes(), 1, INT64_MAX));
      PAGEFERRY_RETURN_IF_ERROR(CheckRange("regions.local.data_offset_bytes",
                                           local.data_offset_bytes(), 0, local.mapping_bytes()));
      region.local = {.shm_name = local.shm_name(),
                      .mapping_size = ByteCount(local.mapping_bytes()),
                      .data_offset = ByteCount(local.data_offset_bytes()),
                      .nonce = local.nonce()};
      if (local.has_data()) {
        PAGEFERRY_ASSIGN_OR_RETURN(region.local->data, LocalDataFromProto(local.data()));
      }
    }
    regions.push_back(std::move(region));
  }
  return regions;
}

absl::StatusOr<std::vector<TransportOffer>> OffersFromProto(const peer_pb::Hello& proto) {
  PAGEFERRY_RETURN_IF_ERROR(CheckCount("transports", proto.transports_size(), 16));
  std::vector<TransportOffer> offers;
  for (const peer_pb::TransportOffer& offer : proto.transports()) {
    if (offer.kind() == peer_pb::TRANSPORT_KIND_UNSPECIFIED) {
      return CheckEnum("transports.kind", offer.kind(), peer_pb::TransportKind_IsValid);
    }
    // A way that only a newer release knows is none for us.
    if (!peer_pb::TransportKind_IsValid(offer.kind())) continue;
    PAGEFERRY_RETURN_IF_ERROR(CheckSize("transports.address", offer.address(), kMaxAddressBytes));
    PAGEFERRY_RETURN_IF_ERROR(CheckSize("transports.unusable", offer.unusable(), 1024));
    offers.push_back({.kind = static_cast<transport::TransportKind>(offer.kind()),
                      .address = offer.address(),
                      .unusable = offer.unusable(),
                      .required = offer.required()});
  }
  return offers;
}

absl::StatusOr<Hello> HelloFromProto(const peer_pb::Hello& proto) {
  Hello hello;
  PAGEFERRY_RETURN_IF_ERROR(CheckName("session_id", proto.session_id(), 64));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("protocol_min", proto.protocol_min(), 1, INT32_MAX));
  PAGEFERRY_RETURN_IF_ERROR(
      CheckRange("protocol_max", proto.protocol_max(), proto.protocol_min(), INT32_MAX));
  PAGEFERRY_RETURN_IF_ERROR(CheckCount("features", proto.features_size(), 64));
  PAGEFERRY_RETURN_IF_ERROR(CheckSize("host_id", proto.host_id(), 128));
  PAGEFERRY_ASSIGN_OR_RETURN(hello.agent, FromProto(proto.agent()), InField(_, "agent"));
  PAGEFERRY_ASSIGN_OR_RETURN(hello.expected, FromProto(proto.expected()), InField(_, "expected"));
  PAGEFERRY_ASSIGN_OR_RETURN(hello.engine, FromProto(proto.engine()), InField(_, "engine"));
  PAGEFERRY_ASSIGN_OR_RETURN(hello.transports, OffersFromProto(proto));
  PAGEFERRY_ASSIGN_OR_RETURN(hello.regions, RegionsFromProto(proto.regions()));
  hello.session = SessionId(proto.session_id());
  hello.resume = proto.resume();
  hello.protocol_min = proto.protocol_min();
  hello.protocol_max = proto.protocol_max();
  hello.host_id = proto.host_id();
  return hello;
}

absl::StatusOr<HelloReply> ReplyFromProto(const peer_pb::HelloReply& proto) {
  HelloReply reply;
  if (proto.has_error()) {
    reply.error = ErrorOf(proto.error(), absl::StatusCode::kUnknown, Reason::kInternal);
    return reply;
  }
  PAGEFERRY_RETURN_IF_ERROR(CheckName("session_id", proto.session_id(), 64));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("protocol", proto.protocol(), 1, INT32_MAX));
  PAGEFERRY_RETURN_IF_ERROR(CheckSize("host_id", proto.host_id(), 128));
  PAGEFERRY_ASSIGN_OR_RETURN(reply.agent, FromProto(proto.agent()), InField(_, "agent"));
  PAGEFERRY_ASSIGN_OR_RETURN(reply.engine, FromProto(proto.engine()), InField(_, "engine"));
  PAGEFERRY_ASSIGN_OR_RETURN(reply.regions, RegionsFromProto(proto.regions()));
  PAGEFERRY_RETURN_IF_ERROR(
      CheckEnum("transport.kind", proto.transport().kind(), peer_pb::TransportKind_IsValid));
  PAGEFERRY_RETURN_IF_ERROR(
      CheckSize("transport.address", proto.transport().address(), kMaxAddressBytes));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("room_credit", proto.room_credit(), 0, INT32_MAX));
  reply.room_credit = proto.room_credit();
  reply.session = SessionId(proto.session_id());
  reply.resumed = proto.resumed();
  reply.protocol = proto.protocol();
  reply.host_id = proto.host_id();
  reply.transport = {.kind = static_cast<transport::TransportKind>(proto.transport().kind()),
                     .address = proto.transport().address(),
                     .reason = proto.transport().reason().substr(0, 1024)};
  return reply;
}

template <class Value>
decltype(PeerInput::content) OrBad(absl::StatusOr<Value> value) {
  if (value.ok()) return *std::move(value);
  return BadFrame{.room = {}, .error = value.status()};
}

template <class Proto>
PeerInput Envelope(const Proto& proto) {
  PeerInput input;
  input.sequence = Sequence(proto.sequence());
  input.acknowledged = Sequence(proto.acknowledged());
  input.epoch = Epoch(proto.epoch());
  return input;
}

}  // namespace

PeerInput FromProto(const peer_pb::DecodeFrame& proto) {
  PeerInput input = Envelope(proto);
  switch (proto.frame_case()) {
    case peer_pb::DecodeFrame::kHello:
      input.content = OrBad(HelloFromProto(proto.hello()));
      break;
    case peer_pb::DecodeFrame::kGrant:
      input.content = Content(proto.grant());
      break;
    case peer_pb::DecodeFrame::kTaken:
      input.content = Content(proto.taken());
      break;
    case peer_pb::DecodeFrame::kAbort:
      input.content = Content(proto.abort());
      break;
    case peer_pb::DecodeFrame::kAbortReply:
      input.content = Content(proto.abort_reply());
      break;
    case peer_pb::DecodeFrame::kRefused:
      input.content = Content(proto.refused());
      break;
    case peer_pb::DecodeFrame::kGoAway:
      input.content = Content(proto.go_away());
      break;
    case peer_pb::DecodeFrame::kHeartbeat:
      input.content = Heartbeat{.nonce = proto.heartbeat().nonce()};
      break;
    case peer_pb::DecodeFrame::kRegionsChanged:
      input.content = Unsupported("regions_changed");
      break;
    case peer_pb::DecodeFrame::kRecompute:
      input.content = Unsupported("recompute", RawRoom(proto.recompute().room()));
      break;
    case peer_pb::DecodeFrame::kStagingGrant:
      input.content = Unsupported("staging_grant", RawRoom(proto.staging_grant().room()));
      break;
    case peer_pb::DecodeFrame::FRAME_NOT_SET:
      input.content = Unsupported("this frame");
      break;
  }
  return input;
}

PeerInput FromProto(const peer_pb::PrefillFrame& proto) {
  PeerInput input = Envelope(proto);
  switch (proto.frame_case()) {
    case peer_pb::PrefillFrame::kHelloReply:
      input.content = OrBad(ReplyFromProto(proto.hello_reply()));
      break;
    case peer_pb::PrefillFrame::kOffer:
      input.content = Content(proto.offer());
      break;
    case peer_pb::PrefillFrame::kCompleted:
      input.content = Content(proto.completed());
      break;
    case peer_pb::PrefillFrame::kFailed:
      input.content = Content(proto.failed());
      break;
    case peer_pb::PrefillFrame::kAbortReply:
      input.content = Content(proto.abort_reply());
      break;
    case peer_pb::PrefillFrame::kRefused:
      input.content = Content(proto.refused());
      break;
    case peer_pb::PrefillFrame::kGoAway:
      input.content = Content(proto.go_away());
      break;
    case peer_pb::PrefillFrame::kAbort:
      input.content = Content(proto.abort());
      break;
    case peer_pb::PrefillFrame::kHeartbeatReply:
      input.content = HeartbeatReply{.nonce = proto.heartbeat_reply().nonce()};
      break;
    case peer_pb::PrefillFrame::kProgress:
      input.content = Unsupported("progress", RawRoom(proto.progress().room()));
      break;
    case peer_pb::PrefillFrame::kRecomputeReply:
      input.content = Unsupported("recompute_reply", RawRoom(proto.recompute_reply().room()));
      break;
    case peer_pb::PrefillFrame::kRegionsChanged:
      input.content = Unsupported("regions_changed");
      break;
    case peer_pb::PrefillFrame::kStagingWritten:
      input.content = Unsupported("staging_written", RawRoom(proto.staging_written().room()));
      break;
    case peer_pb::PrefillFrame::FRAME_NOT_SET:
      input.content = Unsupported("this frame");
      break;
  }
  return input;
}

}  // namespace pageferry::agent
