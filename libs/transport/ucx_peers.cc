#include "libs/transport/ucx_peers.h"

#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "libs/common/error.h"

namespace pageferry::transport {
namespace {

using wire::MessageId;

template <class T>
absl::Span<const std::byte> BytesSpan(const std::vector<T>& elements) {
  return {reinterpret_cast<const std::byte*>(elements.data()), elements.size() * sizeof(T)};
}

}  // namespace

UcxTarget::UcxTarget(UcxWorker& worker, const PullTarget::Options& options, wire::Token token,
                     uint64_t nonce)
    : worker_(worker),
      token_(token),
      nonce_(nonce),
      activity_(worker),
      pulls_(options, [this](const wire::Read& read, std::vector<wire::Range> ranges) {
        if (endpoint_ == nullptr) return;
        wire::Read addressed = read;
        addressed.token = token_;
        auto kept = std::make_unique<std::vector<wire::Range>>(std::move(ranges));
        const absl::Span<const std::byte> bytes = BytesSpan(*kept);
        endpoint_->Send(MessageId::kRead, BytesOf(addressed), {bytes},
                        [kept = std::move(kept)]() mutable { kept.reset(); });
      }) {}

void UcxTarget::Open(const std::string& address, Ready ready) {
  ready_ = std::move(ready);
  auto made = UcxEndpoint::Create(worker_, address, [this](const absl::Status& why) { Fail(why); });
  if (!made.ok()) return Fail(made.status());
  endpoint_ = *std::move(made);
  activity_.Set(true);
  endpoint_->Send(MessageId::kHail, BytesOf(wire::Hail{.token = token_, .nonce = nonce_}));
}

void UcxTarget::OnHailReply() {
  Update();
  if (ready_) std::exchange(ready_, nullptr)(absl::OkStatus());
}

void UcxTarget::Fail(const absl::Status& why) {
  pulls_.Fail(why);
  Update();
  if (ready_) std::exchange(ready_, nullptr)(why);
}

void UcxTarget::Close(const absl::Status& why, absl::AnyInvocable<void()> closed) {
  Fail(why);
  if (endpoint_ == nullptr) return worker_.Defer(std::move(closed));
  endpoint_->Close(std::move(closed));
}

UcxSource::UcxSource(UcxWorker& worker, OwnRegions& regions, int64_t max_in_flight)
    : worker_(worker), regions_(regions), max_in_flight_(max_in_flight), activity_(worker) {}

absl::Status UcxSource::Open(const std::string& address) {
  auto made = UcxEndpoint::Create(worker_, address, [this](const absl::Status& /*why*/) {
    if (pulls_ != nullptr) pulls_->Stop();
    activity_.Set(false);
  });
  if (!made.ok()) return made.status();
  endpoint_ = *std::move(made);
  return absl::OkStatus();
}

void UcxSource::OnHail(uint64_t nonce) {
  if (pulls_ == nullptr) {
    PullSource::Port port;
    port.send_data = [this](PullSource::Message message) {
      endpoint_->Send(MessageId::kData, BytesOf(message.data), std::move(message.parts),
                      [this, request = message.data.request] { pulls_->OnSent(request); });
    };
    port.send_done = [this](const wire::Done& done) {
      endpoint_->Send(MessageId::kDone, BytesOf(done));
      activity_.Set(!pulls_->idle());
    };
    pulls_ = std::make_unique<PullSource>(regions_, nonce, max_in_flight_, std::move(port));
  }
  endpoint_->Send(MessageId::kHailReply, BytesOf(wire::HailReply{.nonce = nonce}));
}

absl::Status UcxSource::OnRead(const wire::Read& read, absl::string_view ranges) {
  if (pulls_ == nullptr) return InvalidField("hail", "", "a hail before a read");
  // Copied: what UCX gives need not be aligned. One that does not fit what was told is left without
  // ranges, which do not add up.
  std::vector<wire::Range> parsed;
  if (read.ranges <= wire::kMaxRanges && ranges.size() == read.ranges * sizeof(wire::Range)) {
    parsed.resize(read.ranges);
    if (!ranges.empty()) std::memcpy(parsed.data(), ranges.data(), ranges.size());
  } else {
    parsed.emplace_back();
  }
  const absl::Status status = pulls_->OnRead(read, parsed);
  activity_.Set(!pulls_->idle());
  return status;
}

void UcxSource::Close(absl::AnyInvocable<void()> closed) {
  if (pulls_ != nullptr) pulls_->Stop();
  activity_.Set(false);
  if (endpoint_ == nullptr) return worker_.Defer(std::move(closed));
  endpoint_->Close(std::move(closed));
}

}  // namespace pageferry::transport
