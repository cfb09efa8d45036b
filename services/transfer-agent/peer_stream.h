#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/transfer-agent/peer_messages.h"

/// The stream under a session, without gRPC: peer_service.cc and peer_client.cc implement it, tests
/// have a fake.
namespace pageferry::agent {

/// Told of what comes on a stream. Loop-confined.
class PeerStreamHandler {
 public:
  virtual ~PeerStreamHandler() = default;
  /// A frame came. The next one comes only after PeerStream::ReadNext.
  virtual void OnInput(PeerInput input) = 0;
  /// The stream has ended, for the reason that the other side or gRPC gave. At most once; last.
  virtual void OnStreamEnded(const absl::Status& why) = 0;
};

/// Loop-confined. The gRPC call behind it keeps itself alive until it has ended.
class PeerStream {
 public:
  virtual ~PeerStream() = default;
  /// Null: nobody listens any more. Borrowed until replaced.
  virtual void SetHandler(PeerStreamHandler* handler) = 0;
  /// False where the outbox is full: end the stream.
  virtual bool Send(const PeerOutput& output) = 0;
  virtual void ReadNext() = 0;
  /// Ends it; what waits is written first where `flush`. A server's client gets `why`.
  virtual void End(const absl::Status& why, bool flush) = 0;
};

/// Opens streams to other agents.
class PeerConnector {
 public:
  virtual ~PeerConnector() = default;
  /// Never fails at once: the stream ends by OnStreamEnded instead.
  virtual std::shared_ptr<PeerStream> Connect(const std::string& address) = 0;
};

}  // namespace pageferry::agent
