#include "tests/service/agent/raw_peer.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "libs/common/grpc_runtime.h"
#include "libs/common/grpc_status.h"
#include "libs/common/release_later.h"
#include "pageferry/peer/v1/peer.grpc.pb.h"

namespace pageferry::agent {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

}  // namespace

struct RawPeer::Impl {
  explicit Impl(const std::string& address)
      : channel(MakeChannel(address)), stub(peer_pb::PeerTransfer::NewStub(channel)) {
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    stream = stub->Session(&context);
  }

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<peer_pb::PeerTransfer::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<peer_pb::DecodeFrame, peer_pb::PrefillFrame>> stream;
  bool finished = false;
};

RawPeer::RawPeer(const std::string& address) : impl_(std::make_unique<Impl>(address)) {}

RawPeer::~RawPeer() {
  if (impl_->finished) return;
  impl_->context.TryCancel();
  static_cast<void>(Finish());
}

bool RawPeer::Send(const peer_pb::DecodeFrame& frame) { return impl_->stream->Write(frame); }

std::optional<peer_pb::PrefillFrame> RawPeer::Receive() {
  peer_pb::PrefillFrame frame;
  if (!impl_->stream->Read(&frame)) return std::nullopt;
  return frame;
}

absl::Status RawPeer::Finish() {
  impl_->finished = true;
  impl_->stream->WritesDone();
  peer_pb::PrefillFrame frame;
  while (impl_->stream->Read(&frame)) {
  }
  return FromGrpcStatus(impl_->stream->Finish());
}

void RawPeer::Cancel() { impl_->context.TryCancel(); }

absl::Status RawPeer::TryData(const std::string& address) {
  const auto stub = peer_pb::PeerTransfer::NewStub(MakeChannel(address));
  grpc::ClientContext context;
  const auto stream = stub->Data(&context);
  peer_pb::DataResponse response;
  while (stream->Read(&response)) {
  }
  return FromGrpcStatus(stream->Finish());
}

}  // namespace pageferry::agent
