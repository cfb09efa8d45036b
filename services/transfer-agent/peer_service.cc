#include "services/transfer-agent/peer_service.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <utility>

#include "libs/common/error.h"
#include "libs/common/grpc_identity.h"
#include "libs/common/log.h"
#include "pageferry/peer/v1/peer.grpc.pb.h"
#include "services/transfer-agent/authorize.h"
#include "services/transfer-agent/convert_peer.h"
#include "services/transfer-agent/server_stream.h"

namespace pageferry::agent {
namespace {

LogArea log_area("session");

/// The reactor of PeerTransfer.Session; its life is drawn in server_stream.h.
class AcceptedStream final
    : public ServerStream<peer_pb::DecodeFrame, peer_pb::PrefillFrame, peer_pb::PrefillFrame>,
      public PeerStream {
 public:
  static constexpr Outbox::Limits kLimits{.max_frames = 65'536, .max_bytes = ByteCount(64 << 20)};

  AcceptedStream(Loop& loop, grpc::CallbackServerContext& context, PeerAcceptor& acceptor)
      : ServerStream(loop, context, kLimits), acceptor_(acceptor) {}

  /// Hands the stream to the acceptor, which limits how long it may be silent. On the loop, by
  /// whatever comes first: a post of the rpc's method or the first frame.
  void Accept() {
    if (std::exchange(accepted_, true) || ending()) return;
    acceptor_.Accept(std::static_pointer_cast<AcceptedStream>(shared_from_this()));
  }

  void SetHandler(PeerStreamHandler* handler) override { handler_ = handler; }

  bool Send(const PeerOutput& output) override {
    peer_pb::PrefillFrame frame;
    if (absl::Status status = ToProto(output, frame); !status.ok()) {
      Log(LogLevel::kError, log_area, "frame_not_sent", {{"why", status}});
      return true;
    }
    const ByteCount bytes(static_cast<int64_t>(frame.ByteSizeLong()));
    return Push(std::move(frame), bytes);
  }

  void ReadNext() override { ServerStream::ReadNext(); }
  void End(const absl::Status& why, bool flush) override { ServerStream::End(why, flush); }

 private:
  absl::AnyInvocable<void()> Receive(const peer_pb::DecodeFrame& frame) override {
    return [this, input = FromProto(frame)]() mutable {
      Accept();
      if (handler_ != nullptr) handler_->OnInput(std::move(input));
    };
  }

  void OnEnded(const absl::Status& why) override {
    if (handler_ != nullptr) handler_->OnStreamEnded(why);
    ServerStream::End(absl::OkStatus(), true);
  }

  bool Pack(const peer_pb::PrefillFrame& frame, peer_pb::PrefillFrame& out) override {
    out = frame;
    return false;
  }

  PeerAcceptor& acceptor_;
  PeerStreamHandler* handler_ = nullptr;
  bool accepted_ = false;
};

/// Ends a call of `Data` at once.
class RefusedData final
    : public grpc::ServerBidiReactor<peer_pb::DataRequest, peer_pb::DataResponse> {
 public:
  explicit RefusedData(const absl::Status& why) { Finish(ToGrpcStatus(why)); }
  void OnDone() override { delete this; }
};

class PeerService final : public peer_pb::PeerTransfer::CallbackService {
 public:
  PeerService(Loop& loop, PeerAcceptor& acceptor) : loop_(loop), acceptor_(acceptor) {}

  grpc::ServerBidiReactor<peer_pb::DecodeFrame, peer_pb::PrefillFrame>* Session(
      grpc::CallbackServerContext* context) override {
    const auto stream = std::make_shared<AcceptedStream>(loop_, *context, acceptor_);
    const Caller caller{.identity = CallerIdentity(*context), .address = context->peer()};
    Log(LogLevel::kVerbose, log_area, "peer_calls",
        {{"identity", caller.identity}, {"address", caller.address}});
    stream->Begin(Authorize(caller, Action::kPeer));
    loop_.Post([stream] { stream->Accept(); });
    return stream.get();
  }

  grpc::ServerBidiReactor<peer_pb::DataRequest, peer_pb::DataResponse>* Data(
      grpc::CallbackServerContext*) override {
    return new RefusedData(MakeError(absl::StatusCode::kUnimplemented, Reason::kUnsupported,
                                     "this release moves no bytes over gRPC",
                                     {{"feature", "data"}}));
  }

 private:
  Loop& loop_;
  PeerAcceptor& acceptor_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakePeerService(Loop& loop, PeerAcceptor& acceptor) {
  return std::make_unique<PeerService>(loop, acceptor);
}

}  // namespace pageferry::agent
