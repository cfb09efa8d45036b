#include "libs/transport/transport.h"

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace pageferry::transport {
namespace {

constexpr std::array<std::pair<TransportKind, absl::string_view>, 4> kNames = {{
    {TransportKind::kLocal, "local"},
    {TransportKind::kRdma, "rdma"},
    {TransportKind::kTcp, "tcp"},
    {TransportKind::kGrpc, "grpc"},
}};

}  // namespace

absl::string_view TransportName(TransportKind kind) {
  for (const auto& [value, name] : kNames) {
    if (value == kind) return name;
  }
  return "unknown";
}

std::optional<TransportKind> ParseTransportName(absl::string_view name) {
  for (const auto& [value, text] : kNames) {
    if (text == name) return value;
  }
  return std::nullopt;
}

ByteCount BatchBytes(const std::vector<Step>& steps) {
  ByteCount sum;
  for (const Step& step : steps) {
    if (step.entries == nullptr) continue;
    ByteCount item_bytes;
    for (const EntryPair& entry : *step.entries) item_bytes += entry.item_size;
    int64_t items = 0;
    for (const RunPair& run : step.runs) items = SaturatingAdd(items, run.count);
    sum += item_bytes * items;
  }
  return sum;
}

struct CancelToken::Wakers {
  absl::Mutex mutex;
  std::vector<absl::AnyInvocable<void()>> waiting ABSL_GUARDED_BY(mutex);
};

CancelToken::CancelToken() : wakers_(std::make_unique<Wakers>()) {}
CancelToken::~CancelToken() = default;

void CancelToken::Cancel() {
  std::vector<absl::AnyInvocable<void()>> waiting;
  {
    const absl::MutexLock lock(&wakers_->mutex);
    cancelled_.store(true, std::memory_order_release);
    waiting.swap(wakers_->waiting);
  }
  for (auto& wake : waiting) wake();
}

void CancelToken::Watch(absl::AnyInvocable<void()> wake) {
  {
    const absl::MutexLock lock(&wakers_->mutex);
    if (!cancelled_.load(std::memory_order_relaxed)) {
      wakers_->waiting.push_back(std::move(wake));
      return;
    }
  }
  wake();
}

}  // namespace pageferry::transport
