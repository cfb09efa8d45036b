#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "libs/common/grpc_status.h"
#include "libs/common/stream_outbox.h"
#include "services/transfer-agent/loop.h"

namespace pageferry::agent {

/// What the client ends of our bidi streams have in common, as server_stream.h.
///
///   Begin: self-reference, one hold, first read, StartCall
///   OnReadDone(ok)  -> Receive on gRPC's thread -> its closure on the loop -> ReadNext
///   OnReadDone(!ok) -> nothing more is begun -> RemoveHold
///   Push -> outbox -> StartWrite -> OnWriteDone -> loop -> next
///   End  -> what waits is written -> StartWritesDone (or TryCancel at once), reads to the end
///   OnDone(status)  -> OnEnded on the loop, once -> self-reference goes
///
/// The hold stands for the operations that the loop begins: it goes when reading has ended and no
/// write is in flight. Loop-confined but for gRPC's reactions, which only post. Kept alive by
/// itself until OnDone; the last reference is dropped on the loop, never in a reaction.
template <class Request, class Response, class Frame>
class ClientStream : public grpc::ClientBidiReactor<Request, Response>,
                     public std::enable_shared_from_this<ClientStream<Request, Response, Frame>> {
 public:
  using Outbox = StreamOutbox<Frame>;
  static constexpr absl::Duration kEndGrace = absl::Seconds(2);

  ClientStream(Loop& loop, const typename Outbox::Limits& limits)
      : loop_(loop), outbox_(limits), end_timer_(loop) {}

  /// `bind` starts the rpc: stub->async()->Method(context, reactor).
  void Begin(absl::AnyInvocable<void(grpc::ClientContext*, ClientStream*)> bind) {
    self_ = this->shared_from_this();
    bind(&context_, this);
    this->AddHold();
    reading_ = true;
    this->StartRead(&response_);
    this->StartCall();
  }

  /// False when the frame found no room: the caller ends the stream. Dropped after End.
  bool Push(Frame&& frame, ByteCount bytes) {
    if (outbox_.Push(std::move(frame), bytes) == PushResult::kOverflow) return false;
    Advance();
    return true;
  }

  void ReadNext() {
    if (ending_ || closed_ || reading_) return;
    reading_ = true;
    this->StartRead(&response_);
  }

  /// Ends the rpc: half-closes it after what waits was written, or cancels it at once. A server
  /// that does not end it in turn is cancelled after `kEndGrace`.
  void End(bool flush = true) {
    if (ending_) return;
    ending_ = true;
    if (flush && !closed_) {
      outbox_.Close();
      end_timer_.Set(loop_.Now() + kEndGrace, [this] { context_.TryCancel(); });
    } else {
      Drop();
      context_.TryCancel();
    }
    Advance();
  }

  bool ending() const { return ending_; }
  size_t waiting() const { return outbox_.size(); }
  ByteCount waiting_bytes() const { return outbox_.bytes(); }

 protected:
  /// Reads a message on gRPC's thread; what it returns runs on the loop.
  virtual absl::AnyInvocable<void()> Receive(const Response& response) = 0;
  /// The rpc is over, with what the server said. On the loop, exactly once; the last call.
  virtual void OnEnded(const absl::Status& status) = 0;
  /// Adds `frame` to `request`; false when no further one should be added.
  virtual bool Pack(const Frame& frame, Request& request) = 0;

  Loop& loop() { return loop_; }

 private:
  void OnReadDone(bool ok) final {
    absl::AnyInvocable<void()> task;
    if (ok) task = Receive(response_);
    loop_.Post([self = this->shared_from_this(), ok, task = std::move(task)]() mutable {
      self->reading_ = false;
      if (!ok) return self->Close();
      if (!self->ending_) return task();
      self->Advance();
    });
  }

  void OnWriteDone(bool ok) final {
    loop_.Post([self = this->shared_from_this(), ok] {
      self->writing_ = false;
      if (!ok) return self->Close();
      self->Advance();
    });
  }

  void OnDone(const grpc::Status& status) final {
    loop_.Post([self = std::move(self_), status = FromGrpcStatus(status)] {
      self->end_timer_.Clear();
      self->Drop();
      self->closed_ = self->ending_ = true;
      self->OnEnded(status);
    });
  }

  void Drop() {
    outbox_.CloseAndDropWaiting();
    static_cast<void>(outbox_.OnWriteDone());
  }

  /// The call is over at the other side, or broken.
  void Close() {
    closed_ = true;
    ending_ = true;
    Drop();
    Advance();
  }

  /// Begins what is to be done next.
  void Advance() {
    if (writing_ || released_) return;
    if (outbox_.in_flight() != nullptr) {
      request_.Clear();
      bool more = true;
      while (more && outbox_.in_flight() != nullptr) {
        more = Pack(*outbox_.in_flight(), request_);
        static_cast<void>(outbox_.OnWriteDone());
      }
      writing_ = true;
      this->StartWrite(&request_);
      return;
    }
    if (!ending_) return;
    if (closed_) {
      released_ = true;
      this->RemoveHold();
      return;
    }
    if (!half_closed_) {
      half_closed_ = true;
      this->StartWritesDone();
    }
    if (!reading_) {
      reading_ = true;
      this->StartRead(&response_);
    }
  }

  Loop& loop_;
  std::shared_ptr<ClientStream> self_;  // until OnDone: gRPC holds a bare pointer
  grpc::ClientContext context_;
  Request request_;
  Response response_;
  Outbox outbox_;  // what waits; the message in flight is request_
  LoopTimer end_timer_;
  bool reading_ = false;
  bool writing_ = false;
  bool closed_ = false;  // nothing more will be read
  bool ending_ = false;  // nothing more is taken
  bool half_closed_ = false;
  bool released_ = false;  // the hold has gone
};

}  // namespace pageferry::agent
