#include "services/transfer-agent/peer_client.h"

#include <grpcpp/channel.h>

#include <optional>
#include <utility>

#include "libs/common/error.h"
#include "libs/common/gate.h"
#include "libs/common/log.h"
#include "libs/common/release_later.h"
#include "pageferry/peer/v1/peer.grpc.pb.h"
#include "services/transfer-agent/client_stream.h"
#include "services/transfer-agent/convert_peer.h"

namespace pageferry::agent {
namespace {

LogArea log_area("session");

/// The reactor of PeerTransfer.Session at the dialling side; its life is drawn in client_stream.h.
class DialledStream final
    : public ClientStream<peer_pb::DecodeFrame, peer_pb::PrefillFrame, peer_pb::DecodeFrame>,
      public PeerStream {
 public:
  static constexpr Outbox::Limits kLimits{.max_frames = 65'536, .max_bytes = ByteCount(64 << 20)};

  DialledStream(Loop& loop, std::shared_ptr<grpc::Channel> channel,
                std::optional<Gate::Holder> holder)
      : ClientStream(loop, kLimits),
        channel_(std::move(channel)),
        stub_(peer_pb::PeerTransfer::NewStub(channel_)),
        holder_(std::move(holder)) {}

  ~DialledStream() override {
    stub_.reset();
    ReleaseLater(std::shared_ptr<void>(std::move(channel_)));
  }

  void Begin() {
    ClientStream::Begin([this](grpc::ClientContext* context, ClientStream* reactor) {
      stub_->async()->Session(context, reactor);
    });
  }

  void SetHandler(PeerStreamHandler* handler) override { handler_ = handler; }

  bool Send(const PeerOutput& output) override {
    peer_pb::DecodeFrame frame;
    if (absl::Status status = ToProto(output, frame); !status.ok()) {
      Log(LogLevel::kError, log_area, "frame_not_sent", {{"why", status}});
      return true;
    }
    const ByteCount bytes(static_cast<int64_t>(frame.ByteSizeLong()));
    return Push(std::move(frame), bytes);
  }

  void ReadNext() override { ClientStream::ReadNext(); }
  void End(const absl::Status&, bool flush) override { ClientStream::End(flush); }

 private:
  absl::AnyInvocable<void()> Receive(const peer_pb::PrefillFrame& frame) override {
    return [this, input = FromProto(frame)]() mutable {
      if (handler_ != nullptr) handler_->OnInput(std::move(input));
    };
  }

  void OnEnded(const absl::Status& status) override {
    if (handler_ != nullptr) handler_->OnStreamEnded(status);
    holder_.reset();
  }

  bool Pack(const peer_pb::DecodeFrame& frame, peer_pb::DecodeFrame& out) override {
    out = frame;
    return false;
  }

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<peer_pb::PeerTransfer::Stub> stub_;
  std::optional<Gate::Holder> holder_;
  PeerStreamHandler* handler_ = nullptr;
};

/// Where the process is going down: a stream that was never there.
class NoStream final : public PeerStream {
 public:
  void SetHandler(PeerStreamHandler*) override {}
  bool Send(const PeerOutput&) override { return true; }
  void ReadNext() override {}
  void End(const absl::Status&, bool) override {}
};

}  // namespace

struct GrpcPeerConnector::Impl {
  Impl(Loop& used_loop, const ChannelOptions& used_options)
      : loop(used_loop), options(used_options) {}

  Loop& loop;
  const ChannelOptions options;
  Gate gate;
};

GrpcPeerConnector::GrpcPeerConnector(Loop& loop, const ChannelOptions& options)
    : impl_(std::make_unique<Impl>(loop, options)) {}

GrpcPeerConnector::~GrpcPeerConnector() = default;

std::shared_ptr<PeerStream> GrpcPeerConnector::Connect(const std::string& address) {
  std::optional<Gate::Holder> holder = impl_->gate.Enter();
  if (!holder.has_value()) return std::make_shared<NoStream>();
  auto stream = std::make_shared<DialledStream>(impl_->loop, MakeChannel(address, impl_->options),
                                                std::move(holder));
  stream->Begin();
  return stream;
}

bool GrpcPeerConnector::WaitUntilEnded(MonotonicTime deadline) {
  impl_->gate.Close();
  return impl_->gate.WaitUntilIdle(deadline);
}

}  // namespace pageferry::agent
