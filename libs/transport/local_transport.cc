#include "libs/transport/local_transport.h"

#include <atomic>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/status.h"
#include "libs/transport/peer_pool.h"
#include "libs/transport/shared_mapping.h"
#include "libs/transport/slicer.h"

namespace pageferry::transport {
namespace {

using Pools = absl::flat_hash_map<RegionId, std::unique_ptr<PeerPool>>;

absl::Status CutShort(absl::string_view side) {
  return MakeError(absl::StatusCode::kUnavailable, Reason::kTransport,
                   absl::StrCat("the shared memory of the ", side, " was cut short"),
                   {{"transport", "local"}});
}

}  // namespace

struct LocalTransport::Target {
  RegionBytes bytes;
  // Null where the memory is not shared and cannot be damaged.
  const SharedMapping::Slot* slot = nullptr;
  // Writes that may touch it. Grows only with the transport's mutex held.
  std::atomic<int64_t> uses{0};
};

// One write. Borrows the peer's pools: the peer outlives its jobs.
class LocalTransport::Job final : public SliceJob {
 public:
  Job(const LocalTransportOptions& options, const Pools& pools, Batch batch, WriteDone done)
      : options_(options), pools_(pools), batch_(std::move(batch)), done_(std::move(done)) {}

  // Checks everything before a byte is copied.
  absl::Status Prepare(LocalTransport& transport) {
    const auto seal_pool = pools_.find(batch_.seal.region);
    if (seal_pool == pools_.end() || batch_.seal.index < 0 || batch_.seal.index >= kSealCount) {
      return MakeError(absl::StatusCode::kInvalidArgument, Reason::kBadPages,
                       "the seal is in no pool of the peer",
                       {{"first", absl::StrCat(batch_.seal.index)},
                        {"count", "1"},
                        {"allowed", absl::StrCat(kSealCount)}});
    }
    seal_pool_ = seal_pool->second.get();
    absl::flat_hash_map<RegionId, RegionBytes> targets;
    const auto find_source = [this](RegionId id) {
      const auto pool = pools_.find(id);
      if (pool == pools_.end()) return RegionBytes();
      // Nobody writes through it: the plan has it as constant.
      return RegionBytes{const_cast<std::byte*>(pool->second->data()),
                         pool->second->size().value()};
    };
    const auto find_target = [&](RegionId id) {
      const auto known = targets.find(id);
      if (known != targets.end()) return known->second;
      std::shared_ptr<Target> target = transport.UseTarget(id);
      const RegionBytes bytes = target == nullptr ? RegionBytes() : target->bytes;
      targets.emplace(id, bytes);
      if (target != nullptr) targets_.push_back(std::move(target));
      return bytes;
    };
    PAGEFERRY_ASSIGN_OR_RETURN(CopyPlan plan, PlanCopy(batch_.steps, find_source, find_target));
    slicer_.emplace(std::move(plan), options_.slice_size);
    batch_.steps.clear();
    return absl::OkStatus();
  }

  // An empty batch has one slice too, for the look at its seal.
  bool has_more() const override { return !cut_ || slicer_->has_more(); }

  void Cut(std::vector<Segment>& slice) override {
    slicer_->Next(slice);
    cut_ = true;
  }

  bool cancelled() const override { return batch_.cancel != nullptr && batch_.cancel->cancelled(); }

  absl::Status Run(absl::Span<const Segment> slice) override {
    if (options_.before_copy) options_.before_copy(batch_.flow, slice);
    CopySegments(slice);
    if (options_.before_check) options_.before_check(batch_.flow, slice);
    if (!seal_pool_->SealIsWhole(batch_.seal.index, batch_.seal.value)) {
      return MakeError(absl::StatusCode::kAborted, Reason::kSealBroken,
                       "the source took its pages back");
    }
    // After the last read of the mappings, the seal among them.
    for (const auto& [id, pool] : pools_) {
      if (pool->damaged()) return CutShort("source");
    }
    for (const auto& target : targets_) {
      if (target->slot != nullptr && SharedMapping::Damaged(*target->slot))
        return CutShort("target");
    }
    return absl::OkStatus();
  }

  void Done(absl::Status status) override {
    for (const auto& target : targets_) target->uses.fetch_sub(1, std::memory_order_release);
    targets_.clear();
    std::move(done_)(std::move(status));
    done_ = nullptr;
  }

 private:
  const LocalTransportOptions& options_;
  const Pools& pools_;
  Batch batch_;
  WriteDone done_;
  const PeerPool* seal_pool_ = nullptr;
  std::vector<std::shared_ptr<Target>> targets_;
  std::optional<Slicer> slicer_;
  bool cut_ = false;
};

class LocalTransport::Peer final : public TransportPeer {
 public:
  Peer(LocalTransport& transport, Pools pools)
      : transport_(transport), pools_(std::move(pools)), client_(transport.queue_.AddClient()) {}

  // The pools go after the last job.
  ~Peer() override { transport_.queue_.RemoveClient(client_); }

  void Write(Batch batch, WriteDone done) override {
    const uint64_t flow = batch.flow;
    const int32_t priority = batch.priority;
    auto job =
        std::make_unique<Job>(transport_.options_, pools_, std::move(batch), std::move(done));
    absl::Status status = job->Prepare(transport_);
    transport_.queue_.Push(client_, flow, priority, std::move(job), std::move(status));
  }

  void Flush(WriteDone done) override { transport_.queue_.Flush(client_, std::move(done)); }

 private:
  LocalTransport& transport_;
  const Pools pools_;
  const SliceQueue::ClientId client_;
};

LocalTransport::LocalTransport(LocalTransportOptions options)
    : options_(std::move(options)), queue_(options_.copy_threads) {}

LocalTransport::~LocalTransport() = default;

absl::StatusOr<RemoteRegion> LocalTransport::MapRegion(const OwnRegion& region) {
  const absl::MutexLock lock(&mutex_);
  if (region.data == nullptr || region.size.value() <= 0 || targets_.contains(region.id)) {
    return MakeError(absl::StatusCode::kInvalidArgument, Reason::kBadHandle,
                     absl::StrCat("region ", region.id.value(), " is empty or known already"),
                     {{"handle", absl::StrCat(region.id.value())}});
  }
  auto target = std::make_shared<Target>();
  target->bytes = {region.data, region.size.value()};
  target->slot = SharedMapping::SlotOf(region.data);
  targets_.emplace(region.id, std::move(target));
  return RemoteRegion{.id = region.id, .size = region.size, .local = region.local};
}

absl::Status LocalTransport::UnmapRegion(RegionId id) {
  const absl::MutexLock lock(&mutex_);
  const auto target = targets_.find(id);
  if (target == targets_.end()) return absl::OkStatus();
  if (target->second->uses.load(std::memory_order_acquire) > 0) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInUse,
                     absl::StrCat("region ", id.value(), " is being written"), {{"by", "a write"}});
  }
  targets_.erase(target);
  return absl::OkStatus();
}

std::shared_ptr<LocalTransport::Target> LocalTransport::UseTarget(RegionId id) {
  const absl::MutexLock lock(&mutex_);
  const auto target = targets_.find(id);
  if (target == targets_.end()) return nullptr;
  target->second->uses.fetch_add(1, std::memory_order_relaxed);
  return target->second;
}

absl::StatusOr<std::unique_ptr<TransportPeer>> LocalTransport::Connect(const PeerSpec& spec) {
  Pools pools;
  for (const RemoteRegion& region : spec.regions) {
    PAGEFERRY_ASSIGN_OR_RETURN(std::unique_ptr<PeerPool> pool,
                               PeerPool::Open(options_.shm_dir, region), Annotate(_, spec.name));
    if (!pools.emplace(region.id, std::move(pool)).second) {
      return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport,
                       "a region is told twice", {{"local", "a region is told twice"}});
    }
  }
  return std::make_unique<Peer>(*this, std::move(pools));
}

}  // namespace pageferry::transport
