#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "libs/common/error.h"
#include "services/transfer-agent/convert_peer.h"
#include "services/transfer-agent/convert_room.h"

namespace pageferry::agent {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};

void RoomToProto(const RoomKey& room, peer_pb::RoomKey& proto) {
  proto.set_room_id(room.id.value());
  proto.set_attempt(static_cast<int32_t>(room.attempt.value()));
}

void Fill(const Grant& grant, peer_pb::Grant& proto) {
  RoomToProto(grant.room, *proto.mutable_room());
  ToProto(grant.runs, *proto.mutable_page_runs());
  ToProto(grant.states, *proto.mutable_states());
  ToProto(std::max(grant.timeout, absl::ZeroDuration()), *proto.mutable_timeout());
  if (grant.aux_slot >= 0) proto.set_aux_slot(grant.aux_slot);
  proto.set_cached_prefix_pages(grant.cached_prefix_pages);
  proto.set_dummy(grant.dummy);
  proto.set_decode_rank_count(grant.decode_rank_count);
  proto.set_priority(grant.priority);
  proto.set_capability(grant.capability);
  proto.set_traceparent(grant.trace.traceparent);
  proto.set_tracestate(grant.trace.tracestate);
  proto.set_checksum(grant.checksum);
}

void Fill(const Taken& taken, peer_pb::Taken& proto) {
  RoomToProto(taken.room, *proto.mutable_room());
  proto.set_pages(taken.pages);
  proto.set_bytes(taken.bytes.value());
  proto.set_complete(taken.complete);
}

void Fill(const Offer& offer, peer_pb::Offer& proto) {
  RoomToProto(offer.room, *proto.mutable_room());
  ToProto(offer.runs, *proto.mutable_page_runs());
  ToProto(offer.states, *proto.mutable_states());
  proto.set_first_granted_index(offer.first_granted_index);
  proto.set_last(offer.last);
  if (offer.aux_slot >= 0) proto.set_aux_slot(offer.aux_slot);
  proto.mutable_seal()->set_region_id(offer.seal.region.value());
  proto.mutable_seal()->set_index(offer.seal.index);
  proto.mutable_seal()->set_value(offer.seal.value);
}

void Fill(const Completed& completed, peer_pb::Completed& proto) {
  RoomToProto(completed.room, *proto.mutable_room());
  proto.set_pages(completed.pages);
  proto.set_bytes(completed.bytes.value());
}

void Fill(const Failed& failed, peer_pb::Failed& proto) {
  RoomToProto(failed.room, *proto.mutable_room());
  ToErrorDetail(failed.error, *proto.mutable_error());
}

void Fill(const Abort& abort, peer_pb::Abort& proto) {
  proto.set_capability(abort.capability);
  RoomToProto(abort.room, *proto.mutable_room());
  ToErrorDetail(abort.error, *proto.mutable_error());
}

void Fill(const AbortReply& reply, peer_pb::AbortReply& proto) {
  RoomToProto(reply.room, *proto.mutable_room());
  proto.set_drained(reply.drained);
  proto.set_unknown(reply.unknown);
}

void Fill(const Refused& refused, peer_pb::Refused& proto) {
  proto.set_sequence(refused.sequence.value());
  RoomToProto(refused.room, *proto.mutable_room());
  ToErrorDetail(refused.error, *proto.mutable_error());
}

void RegionsToProto(const std::vector<transport::RemoteRegion>& regions,
                    google::protobuf::RepeatedPtrField<peer_pb::Region>& protos) {
  for (const transport::RemoteRegion& region : regions) {
    peer_pb::Region& proto = *protos.Add();
    proto.set_region_id(region.id.value());
    proto.set_size_bytes(region.size.value());
    proto.set_remote_address(region.remote_address);
    for (const std::string& key : region.remote_keys) proto.add_remote_keys(key);
    if (region.local.has_value()) {
      peer_pb::LocalRegion& local = *proto.mutable_local();
      local.set_shm_name(region.local->shm_name);
      local.set_mapping_bytes(region.local->mapping_size.value());
      local.set_data_offset_bytes(region.local->data_offset.value());
      local.set_nonce(region.local->nonce);
      if (region.local->data.has_value()) {
        const transport::LocalData& data = *region.local->data;
        local.mutable_data()->set_shm_name(data.shm_name);
        local.mutable_data()->set_process_id(data.pid);
        local.mutable_data()->set_file_descriptor(data.fd);
        local.mutable_data()->set_device(data.device);
        local.mutable_data()->set_inode(data.inode);
        local.mutable_data()->set_offset_bytes(data.offset.value());
      }
    }
  }
}

void Fill(const Hello& hello, peer_pb::Hello& proto) {
  proto.set_session_id(hello.session.value());
  proto.set_resume(hello.resume);
  proto.set_protocol_min(hello.protocol_min);
  proto.set_protocol_max(hello.protocol_max);
  ToProto(hello.agent, *proto.mutable_agent());
  ToProto(hello.expected, *proto.mutable_expected());
  *proto.mutable_engine() = ToPeerEngine(hello.engine);
  proto.set_host_id(hello.host_id);
  for (const TransportOffer& offer : hello.transports) {
    peer_pb::TransportOffer& out = *proto.add_transports();
    out.set_kind(static_cast<peer_pb::TransportKind>(offer.kind));
    out.set_address(offer.address);
    out.set_unusable(offer.unusable);
    out.set_required(offer.required);
  }
  RegionsToProto(hello.regions, *proto.mutable_regions());
}

void Fill(const HelloReply& reply, peer_pb::HelloReply& proto) {
  proto.set_session_id(reply.session.value());
  if (!reply.error.ok()) {
    ToErrorDetail(reply.error, *proto.mutable_error());
    return;
  }
  proto.set_resumed(reply.resumed);
  proto.set_protocol(reply.protocol);
  ToProto(reply.agent, *proto.mutable_agent());
  *proto.mutable_engine() = ToPeerEngine(reply.engine);
  proto.set_host_id(reply.host_id);
  proto.mutable_transport()->set_kind(static_cast<peer_pb::TransportKind>(reply.transport.kind));
  proto.mutable_transport()->set_address(reply.transport.address);
  proto.mutable_transport()->set_reason(reply.transport.reason);
  RegionsToProto(reply.regions, *proto.mutable_regions());
  proto.set_room_credit(reply.room_credit);
}

absl::Status WrongWay() {
  return MakeError(absl::StatusCode::kInternal, Reason::kInternal,
                   "a frame that this direction does not carry");
}

template <class Proto>
void Envelope(const PeerOutput& output, Proto& proto) {
  proto.set_sequence(output.sequence.value());
  proto.set_acknowledged(output.acknowledged.value());
  proto.set_epoch(output.epoch.value());
}

absl::Status FillDecode(const PeerFrame& frame, peer_pb::DecodeFrame& proto) {
  return std::visit(
      Overloaded{
          [&](const Grant& f) { return Fill(f, *proto.mutable_grant()), absl::OkStatus(); },
          [&](const Taken& f) { return Fill(f, *proto.mutable_taken()), absl::OkStatus(); },
          [&](const Abort& f) { return Fill(f, *proto.mutable_abort()), absl::OkStatus(); },
          [&](const AbortReply& f) {
            return Fill(f, *proto.mutable_abort_reply()), absl::OkStatus();
          },
          [&](const Refused& f) { return Fill(f, *proto.mutable_refused()), absl::OkStatus(); },
          [&](const GoAway& f) {
            ToErrorDetail(f.error, *proto.mutable_go_away()->mutable_error());
            return absl::OkStatus();
          },
          [](const auto&) { return WrongWay(); },
      },
      frame);
}

absl::Status FillPrefill(const PeerFrame& frame, peer_pb::PrefillFrame& proto) {
  return std::visit(
      Overloaded{
          [&](const Offer& f) { return Fill(f, *proto.mutable_offer()), absl::OkStatus(); },
          [&](const Completed& f) { return Fill(f, *proto.mutable_completed()), absl::OkStatus(); },
          [&](const Failed& f) { return Fill(f, *proto.mutable_failed()), absl::OkStatus(); },
          [&](const Abort& f) { return Fill(f, *proto.mutable_abort()), absl::OkStatus(); },
          [&](const AbortReply& f) {
            return Fill(f, *proto.mutable_abort_reply()), absl::OkStatus();
          },
          [&](const Refused& f) { return Fill(f, *proto.mutable_refused()), absl::OkStatus(); },
          [&](const GoAway& f) {
            ToErrorDetail(f.error, *proto.mutable_go_away()->mutable_error());
            return absl::OkStatus();
          },
          [](const auto&) { return WrongWay(); },
      },
      frame);
}

}  // namespace

absl::Status ToProto(const PeerOutput& output, peer_pb::DecodeFrame& proto) {
  Envelope(output, proto);
  return std::visit(
      Overloaded{
          [&](const PeerFrame& frame) { return FillDecode(frame, proto); },
          [&](const Hello& hello) { return Fill(hello, *proto.mutable_hello()), absl::OkStatus(); },
          [&](const Heartbeat& beat) {
            proto.mutable_heartbeat()->set_nonce(beat.nonce);
            return absl::OkStatus();
          },
          [](const auto&) { return WrongWay(); },
      },
      output.content);
}

absl::Status ToProto(const PeerOutput& output, peer_pb::PrefillFrame& proto) {
  Envelope(output, proto);
  return std::visit(Overloaded{
                        [&](const PeerFrame& frame) { return FillPrefill(frame, proto); },
                        [&](const HelloReply& reply) {
                          return Fill(reply, *proto.mutable_hello_reply()), absl::OkStatus();
                        },
                        [&](const HeartbeatReply& reply) {
                          proto.mutable_heartbeat_reply()->set_nonce(reply.nonce);
                          return absl::OkStatus();
                        },
                        [](const auto&) { return WrongWay(); },
                    },
                    output.content);
}

}  // namespace pageferry::agent
