#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "libs/common/error.h"
#include "libs/common/ids.h"
#include "services/transfer-agent/loop.h"
#include "services/transfer-agent/peer_stream.h"

namespace pageferry::agent {

struct PeerTimings {
  absl::Duration busy_heartbeat = absl::Seconds(1);   ///< while the session holds rooms
  absl::Duration busy_silence = absl::Seconds(3);     ///< longest, then the peer is dead
  absl::Duration idle_heartbeat = absl::Seconds(10);  ///< while it holds none
  absl::Duration idle_silence = absl::Seconds(30);
  absl::Duration hello = absl::Seconds(5);  ///< for Hello or its answer to come
};

/// One session with another agent, at either end: numbers and checks frames, shows signs of life
/// and watches for the other side's.
///
///   kOpening --Open--> kLive --Close, stream lost, silence, gap--> kClosed --OnClosed--> (destroy)
///      \----------------------------- the same ------------------------^
///
/// Until resumption comes, a session is one stream: its loss ends the session.
///
/// Loop-confined. Shares the stream, borrows loop and host. OnClosed comes once, by itself on the
/// loop, never inside another call; the destructor ends the stream and says nothing.
class PeerSession final : public PeerStreamHandler {
 public:
  enum class State { kOpening, kLive, kClosed };

  /// Whoever owns the session.
  class Host {
   public:
    virtual ~Host() = default;
    virtual void OnHello(PeerSession& session, Hello hello) = 0;
    virtual void OnHelloReply(PeerSession& session, HelloReply reply) = 0;
    /// Of a live session, in order, each once, of the right epoch.
    virtual void OnFrame(PeerSession& session, Sequence sequence, PeerFrame frame) = 0;
    /// The peer said something that changed nothing; it has been told.
    virtual void OnRefused(PeerSession& session, Reason reason) = 0;
    virtual void OnClosed(PeerSession& session, const absl::Status& why) = 0;
    /// Rooms that the session holds.
    virtual int64_t RoomCount(const PeerSession& session) = 0;
  };

  PeerSession(Loop& loop, Host& host, PeerId id, bool dialled, std::shared_ptr<PeerStream> stream,
              const PeerTimings& timings);
  ~PeerSession() override;

  /// Hands the session to another owner.
  void SetHost(Host& host) { host_ = &host; }

  /// Sends Hello or its answer.
  void SendHello(const AgentRef& own, Hello hello);
  void SendHelloReply(const AgentRef& own, HelloReply reply);

  /// Hello went well on this side. Rooms may use it.
  void Open(const AgentRef& own, const AgentRef& peer);

  /// Dropped unless live. Ends the session with kResourceExhausted, LIMIT_REACHED when the outbox
  /// is full.
  void Send(PeerFrame frame);

  /// Ends it on purpose; the other side learns `why` where it is the client.
  void Close(const absl::Status& why, bool flush = true);

  /// Lets the next frame come: for the host after OnHello and OnHelloReply, which hold it back.
  void ReadNext() { stream_->ReadNext(); }

  PeerId id() const { return id_; }
  bool dialled() const { return dialled_; }
  State state() const { return state_; }
  bool going_away() const { return going_away_; }
  const AgentRef& own() const { return own_; }
  const AgentRef& peer() const { return peer_; }

  void OnInput(PeerInput input) override;
  void OnStreamEnded(const absl::Status& why) override;

 private:
  void OnOpening(PeerInput input);
  void OnLive(PeerInput input);
  void Refuse(Sequence sequence, const RoomKey& room, const absl::Status& error);
  void SendOutput(PeerOutput output);
  void BecomeBusy();
  void ArmTimer();
  void OnTimer();

  Loop& loop_;
  Host* host_;
  const PeerId id_;
  const bool dialled_;
  const PeerTimings timings_;
  const std::shared_ptr<PeerStream> stream_;  // shared with the call behind it
  const std::shared_ptr<bool> alive_;         // for what this posts to itself
  LoopTimer timer_;
  State state_ = State::kOpening;
  AgentRef own_;
  AgentRef peer_;
  bool hello_seen_ = false;
  bool going_away_ = false;
  bool busy_ = false;
  Sequence last_sent_;
  Sequence last_received_;
  MonotonicTime heard_;      // last frame that came, or when silence began to count
  MonotonicTime heartbeat_;  // last one sent
  int64_t heartbeat_nonce_ = 0;
};

}  // namespace pageferry::agent
