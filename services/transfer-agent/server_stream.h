#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>
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

/// What the server ends of our two bidi streams have in common: one read and one write in flight, a
/// bounded outbox, Finish exactly once.
///
///   rpc starts -> Begin: self-reference, first read
///   OnReadDone(ok)     -> Receive on gRPC's thread -> its closure on the loop -> ReadNext
///   OnReadDone(!ok), OnWriteDone(!ok), OnCancel -> OnEnded on the loop, once
///   Push -> outbox -> StartWrite -> OnWriteDone -> loop -> next
///   End  -> what waits is written (or dropped) -> Finish -> OnDone -> self-reference goes
///
/// Loop-confined but for gRPC's reactions, which only post. Kept alive by itself until OnDone; the
/// closures that it posts keep it alive as well. A write that a deaf client holds up for
/// `kFinishGrace` after End is cancelled.
template <class Request, class Response, class Frame>
class ServerStream : public grpc::ServerBidiReactor<Request, Response>,
                     public std::enable_shared_from_this<ServerStream<Request, Response, Frame>> {
 public:
  using Outbox = StreamOutbox<Frame>;
  static constexpr absl::Duration kFinishGrace = absl::Seconds(2);

  /// Borrows both; the server ends all calls before they go.
  ServerStream(Loop& loop, grpc::CallbackServerContext& context,
               const typename Outbox::Limits& limits)
      : loop_(loop), context_(context), outbox_(limits), finish_timer_(loop) {}

  /// In the rpc's method, before the reactor is returned; nothing else before. Where `admitted` is
  /// an error, the rpc ends with it.
  void Begin(const absl::Status& admitted) {
    self_ = this->shared_from_this();
    if (admitted.ok()) {
      this->StartRead(&request_);
    } else {
      loop_.Post([self = this->shared_from_this(), admitted] { self->End(admitted); });
    }
  }

  /// False when the frame found no room: the caller ends the stream. Dropped after End.
  bool Push(Frame&& frame, ByteCount bytes) {
    const PushResult result = outbox_.Push(std::move(frame), bytes);
    if (result == PushResult::kOverflow) return false;
    WriteNext();
    return true;
  }

  /// Asks for the next message; each call to Receive needs one.
  void ReadNext() {
    if (!ending_ && !closed_) this->StartRead(&request_);
  }

  /// Ends the rpc with `status`; the first call counts. What waits is written first where `flush`.
  void End(const absl::Status& status, bool flush = true) {
    if (ending_) return;
    ending_ = true;
    status_ = status;
    if (flush && !closed_) {
      outbox_.Close();
    } else {
      outbox_.CloseAndDropWaiting();
      static_cast<void>(outbox_.OnWriteDone());
    }
    WriteNext();
    if (!finished_) {
      finish_timer_.Set(loop_.Now() + kFinishGrace, [this] {
        // Finish has not been called, so the call and its context are there.
        if (!finished_) context_.TryCancel();
      });
    }
  }

  bool ending() const { return ending_; }
  size_t waiting() const { return outbox_.size(); }
  ByteCount waiting_bytes() const { return outbox_.bytes(); }

 protected:
  /// Reads a message on gRPC's thread; what it returns runs on the loop.
  virtual absl::AnyInvocable<void()> Receive(const Request& request) = 0;
  /// The client has half-closed, gone or was cancelled. On the loop, at most once. Call End.
  virtual void OnEnded(const absl::Status& why) = 0;
  /// Adds `frame` to `response`; false when no further one should be added.
  virtual bool Pack(const Frame& frame, Response& response) = 0;

  Loop& loop() { return loop_; }
  const grpc::CallbackServerContext& context() const { return context_; }

 private:
  void OnReadDone(bool ok) final {
    absl::AnyInvocable<void()> task;
    if (ok) task = Receive(request_);
    loop_.Post([self = this->shared_from_this(), ok, task = std::move(task)]() mutable {
      if (!ok) return self->Close(absl::OkStatus());
      if (!self->ending_) task();
    });
  }

  void OnWriteDone(bool ok) final {
    loop_.Post([self = this->shared_from_this(), ok] {
      self->writing_ = false;
      if (!ok) self->Close(absl::UnavailableError("the stream broke"));
      self->WriteNext();
    });
  }

  void OnCancel() final {
    loop_.Post([self = this->shared_from_this()] {
      self->Close(absl::CancelledError("the call was cancelled"));
    });
  }

  void OnDone() final {
    // The last reference may be this one: let the loop drop it.
    loop_.Post([self = std::move(self_)] { self->finish_timer_.Clear(); });
  }

  void Close(const absl::Status& why) {
    if (!why.ok()) {
      outbox_.CloseAndDropWaiting();
      static_cast<void>(outbox_.OnWriteDone());
    }
    if (closed_) return;
    closed_ = true;
    if (!ending_) OnEnded(why);
  }

  void WriteNext() {
    if (writing_ || finished_) return;
    if (outbox_.in_flight() != nullptr) {
      response_.Clear();
      bool more = true;
      while (more && outbox_.in_flight() != nullptr) {
        more = Pack(*outbox_.in_flight(), response_);
        static_cast<void>(outbox_.OnWriteDone());
      }
      writing_ = true;
      this->StartWrite(&response_);
      return;
    }
    if (ending_) {
      finished_ = true;
      finish_timer_.Clear();
      this->Finish(ToGrpcStatus(status_));
    }
  }

  Loop& loop_;
  grpc::CallbackServerContext& context_;
  std::shared_ptr<ServerStream> self_;  // until OnDone: gRPC holds a bare pointer
  Request request_;
  Response response_;
  Outbox outbox_;  // what waits; the message in flight is response_
  LoopTimer finish_timer_;
  absl::Status status_;
  bool writing_ = false;
  bool closed_ = false;  // nothing more will be read
  bool ending_ = false;
  bool finished_ = false;
};

}  // namespace pageferry::agent
