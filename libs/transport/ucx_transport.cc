#include "libs/transport/ucx_transport.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "libs/common/backoff.h"
#include "libs/common/error.h"
#include "libs/common/status.h"
#include "libs/transport/slicer.h"
#include "libs/transport/ucx_peers.h"

namespace pageferry::transport {
namespace {

using wire::MessageId;

absl::Status NoTransport(const std::string& why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport, why,
                   {{"tcp", why}});
}

absl::string_view View(const void* bytes, size_t size) {
  return {static_cast<const char*>(bytes), size};
}

}  // namespace

// Who is who, on the worker's thread only.
struct UcxTransport::Shared {
  Shared(const UcxTransportOptions& used, UcxWorker& thread) : options(used), worker(thread) {}

  const UcxTransportOptions& options;
  UcxWorker& worker;
  absl::flat_hash_map<uint64_t, std::shared_ptr<UcxTarget>> targets;
  absl::flat_hash_map<wire::Token, std::shared_ptr<UcxSource>> sources;

  void Refused(absl::string_view what) const {
    if (options.refused) options.refused(what);
  }

  std::shared_ptr<UcxTarget> TargetOf(uint64_t nonce) const {
    const auto found = targets.find(nonce);
    return found == targets.end() ? nullptr : found->second;
  }
  std::shared_ptr<UcxSource> SourceOf(const wire::Token& token) const {
    const auto found = sources.find(token);
    return found == sources.end() ? nullptr : found->second;
  }

  void On(const wire::Hail& hail, absl::string_view /*payload*/) {
    const auto source = SourceOf(hail.token);
    if (source == nullptr) return Refused("hail");
    source->OnHail(hail.nonce);
  }
  void On(const wire::HailReply& reply, absl::string_view /*payload*/) {
    const auto target = TargetOf(reply.nonce);
    if (target == nullptr) return Refused("hail");
    target->OnHailReply();
  }
  void On(const wire::Read& read, absl::string_view payload) {
    const auto source = SourceOf(read.token);
    if (source == nullptr) return Refused("read");
    if (!source->OnRead(read, payload).ok()) Refused("read");
  }
  void On(const wire::Data& data, absl::string_view payload) {
    const auto target = TargetOf(data.nonce);
    if (target == nullptr || !target->pulls().OnData(data, payload)) return Refused("data");
    target->Update();
  }
  void On(const wire::Done& done, absl::string_view /*payload*/) {
    const auto target = TargetOf(done.nonce);
    if (target == nullptr || !target->pulls().OnDone(done)) return Refused("done");
    target->Update();
  }

  template <class Message>
  static ucs_status_t OnMessage(void* arg, const void* header, size_t header_size, void* payload,
                                size_t size, const ucp_am_recv_param_t* param) {
    auto* const shared = static_cast<Shared*>(arg);
    const auto message = wire::Parse<Message>(View(header, header_size));
    // A rendezvous would write to us without our looking at it; it is turned down.
    if (!message.has_value() || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
      shared->Refused("malformed");
    } else {
      shared->On(*message, View(payload, size));
    }
    return UCS_OK;
  }

  template <class Message>
  absl::Status Handle(MessageId id) {
    return worker.SetHandler(static_cast<unsigned>(id), &OnMessage<Message>, this);
  }
  absl::Status HandleAll() {
    PAGEFERRY_RETURN_IF_ERROR(Handle<wire::Hail>(MessageId::kHail));
    PAGEFERRY_RETURN_IF_ERROR(Handle<wire::HailReply>(MessageId::kHailReply));
    PAGEFERRY_RETURN_IF_ERROR(Handle<wire::Read>(MessageId::kRead));
    PAGEFERRY_RETURN_IF_ERROR(Handle<wire::Data>(MessageId::kData));
    return Handle<wire::Done>(MessageId::kDone);
  }
};

class UcxTransport::Peer final : public TransportPeer {
 public:
  Peer(UcxTransport& transport, std::shared_ptr<UcxTarget> target, const PeerSpec& spec)
      : transport_(transport), target_(std::move(target)) {
    for (const RemoteRegion& region : spec.regions) {
      sizes_.emplace(region.id, region.size.value());
    }
  }

  ~Peer() override {
    absl::Notification closed;
    transport_.worker_->Post([&] {
      transport_.shared_->targets.erase(target_->nonce());
      target_->Close(absl::CancelledError("the session has ended"), [&closed] { closed.Notify(); });
    });
    closed.WaitForNotification();
    // Its last owner is the worker's thread.
    transport_.worker_->Run([&] { target_.reset(); });
  }

  void Write(Batch batch, WriteDone done) override {
    OwnRegions::Uses uses;
    const auto size_of = [&](RegionId id) {
      const auto found = sizes_.find(id);
      return found == sizes_.end() ? int64_t{-1} : found->second;
    };
    const auto find_target = [&](RegionId id) {
      const OwnRegions::Region* const region = uses.Take(transport_.regions_, id);
      return region == nullptr ? RegionBytes() : region->bytes;
    };
    absl::StatusOr<PullPlan> plan = PlanPull(batch.steps, size_of, find_target);
    if (!plan.ok()) {
      transport_.worker_->Post(
          [status = plan.status(), done = std::move(done)]() mutable { std::move(done)(status); });
      return;
    }
    batch.steps.clear();
    if (batch.cancel != nullptr) {
      batch.cancel->Watch([inbox = transport_.worker_->inbox(), weak = std::weak_ptr(target_)] {
        inbox->Post([weak] {
          const std::shared_ptr<UcxTarget> target = weak.lock();
          if (target == nullptr) return;
          target->pulls().OnCancel();
          target->Update();
        });
      });
    }
    transport_.worker_->Post([target = target_, batch = std::move(batch), plan = *std::move(plan),
                              uses = std::move(uses), done = std::move(done)]() mutable {
      target->pulls().Write(std::move(batch), std::move(plan), std::move(uses), std::move(done));
      target->Update();
    });
  }

  void Flush(WriteDone done) override {
    transport_.worker_->Post([target = target_, done = std::move(done)]() mutable {
      target->pulls().Flush(std::move(done));
    });
  }

 private:
  UcxTransport& transport_;
  std::shared_ptr<UcxTarget> target_;
  absl::flat_hash_map<RegionId, int64_t> sizes_;
};

class UcxTransport::Passive final : public PassivePeer {
 public:
  Passive(UcxTransport& transport, std::shared_ptr<UcxSource> source, wire::Token token,
          std::string address)
      : transport_(transport),
        source_(std::move(source)),
        token_(token),
        address_(std::move(address)) {}

  ~Passive() override {
    absl::Notification closed;
    transport_.worker_->Post([&] {
      transport_.shared_->sources.erase(token_);
      source_->Close([&closed] { closed.Notify(); });
    });
    closed.WaitForNotification();
    transport_.worker_->Run([&] { source_.reset(); });
  }

  std::string address() const override { return address_; }

 private:
  UcxTransport& transport_;
  std::shared_ptr<UcxSource> source_;
  const wire::Token token_;
  const std::string address_;
};

UcxTransport::UcxTransport(UcxTransportOptions options) : options_(std::move(options)) {}

UcxTransport::~UcxTransport() {
  if (worker_ == nullptr || shared_ == nullptr) return;
  // What is left are peers that are being dialled.
  worker_->Run([this] {
    const auto targets = shared_->targets;
    for (const auto& [nonce, target] : targets) target->Fail(absl::CancelledError("stopping"));
  });
  worker_.reset();
}

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Start(UcxTransportOptions options) {
  std::unique_ptr<UcxTransport> transport(new UcxTransport(std::move(options)));
  PAGEFERRY_ASSIGN_OR_RETURN(transport->worker_, UcxWorker::Start(transport->options_.worker));
  transport->shared_ = std::make_unique<Shared>(transport->options_, *transport->worker_);
  absl::Status status;
  transport->worker_->Run([&] { status = transport->shared_->HandleAll(); });
  PAGEFERRY_RETURN_IF_ERROR(status);
  return transport;
}

std::string UcxTransport::address() const {
  wire::Address own{.worker = worker_->address()};
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  own.ucx_major = static_cast<uint16_t>(major);
  own.ucx_minor = static_cast<uint16_t>(minor);
  return wire::EncodeAddress(own);
}

absl::StatusOr<wire::Address> UcxTransport::CheckAddress(absl::string_view bytes) const {
  PAGEFERRY_ASSIGN_OR_RETURN(wire::Address peer, wire::DecodeAddress(bytes));
  PAGEFERRY_ASSIGN_OR_RETURN(const wire::Address own, wire::DecodeAddress(address()));
  if (peer.ucx_major == own.ucx_major && peer.ucx_minor == own.ucx_minor) return peer;
  return NoTransport(absl::StrCat("UCX ", own.ucx_major, ".", own.ucx_minor, " here and ",
                                  peer.ucx_major, ".", peer.ucx_minor, " there"));
}

absl::StatusOr<RemoteRegion> UcxTransport::MapRegion(const OwnRegion& region) {
  PAGEFERRY_RETURN_IF_ERROR(regions_.Add(region));
  return RemoteRegion{.id = region.id, .size = region.size, .local = region.local};
}

absl::Status UcxTransport::UnmapRegion(RegionId id) { return regions_.Remove(id); }

absl::StatusOr<std::unique_ptr<TransportPeer>> UcxTransport::Connect(const PeerSpec& spec) {
  absl::StatusOr<std::unique_ptr<TransportPeer>> result;
  absl::Notification ready;
  ConnectLater(spec, [&](absl::StatusOr<std::unique_ptr<TransportPeer>> peer) {
    result = std::move(peer);
    ready.Notify();
  });
  ready.WaitForNotification();
  return result;
}

void UcxTransport::ConnectLater(const PeerSpec& spec, ConnectDone done) {
  const absl::StatusOr<wire::Address> address = CheckAddress(spec.address);
  if (!address.ok()) return std::move(done)(address.status());
  worker_->Post([this, spec, address = *address, done = std::move(done)]() mutable {
    const auto target = std::make_shared<UcxTarget>(
        *worker_, PullTarget::Options{.window = options_.window, .first_request = RandomSeed()},
        address.token, RandomSeed());
    shared_->targets.emplace(target->nonce(), target);
    worker_->RunAt(
        RealClock::Get().Now() + options_.connect_timeout,
        [weak = std::weak_ptr(target), timeout = options_.connect_timeout] {
          const auto late = weak.lock();
          if (late == nullptr) return;
          late->GiveUp(NoTransport(absl::StrCat("the peer's UCX worker did not answer within ",
                                                absl::FormatDuration(timeout))));
        });
    target->Open(address.worker,
                 [this, target, spec, done = std::move(done)](const absl::Status& status) mutable {
                   if (status.ok())
                     return std::move(done)(std::make_unique<Peer>(*this, target, spec));
                   shared_->targets.erase(target->nonce());
                   worker_->Defer([target, status] { target->Close(status, [target] {}); });
                   std::move(done)(ReasonOf(status) == Reason::kNoTransport
                                       ? status
                                       : NoTransport(std::string(status.message())));
                 });
  });
}

absl::StatusOr<std::unique_ptr<PassivePeer>> UcxTransport::Accept(const PeerSpec& spec) {
  PAGEFERRY_ASSIGN_OR_RETURN(const wire::Address peer, CheckAddress(spec.address));
  PAGEFERRY_ASSIGN_OR_RETURN(wire::Address own, wire::DecodeAddress(address()));
  own.token = wire::DrawToken();
  auto source = std::make_shared<UcxSource>(*worker_, regions_, options_.max_in_flight);
  worker_->Post([this, source, token = own.token, worker = peer.worker] {
    // Without an endpoint it answers nothing, and the target gives up on this way.
    if (source->Open(worker).ok()) shared_->sources.emplace(token, source);
  });
  return std::make_unique<Passive>(*this, std::move(source), own.token, wire::EncodeAddress(own));
}

}  // namespace pageferry::transport
