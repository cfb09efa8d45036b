#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "pageferry/peer/v1/peer.pb.h"

namespace pageferry::agent {

namespace peer_pb = ::pageferry::peer::v1;

/// The dialling end of PeerTransfer.Session, frame by frame.
class RawPeer {
 public:
  explicit RawPeer(const std::string& address);
  ~RawPeer();

  bool Send(const peer_pb::DecodeFrame& frame);
  /// Nothing when the stream has ended, or after 20 s.
  std::optional<peer_pb::PrefillFrame> Receive();
  /// Half-closes and waits for the end.
  absl::Status Finish();
  void Cancel();

  /// What `Data` answers.
  static absl::Status TryData(const std::string& address);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pageferry::agent
