#include "libs/transport/local_transport.h"

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/status.h"
#include "libs/transport/peer_pool.h"
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
    const auto find_source = [this](RegionId id) {
      const auto pool = pools_.find(id);
      if (pool == pools_.end()) return RegionBytes();
      // Nobody writes through it: the plan has it as constant.
      return RegionBytes{const_cast<std::byte*>(pool->second->data()),
                         pool->second->size().value()};
    };
    const auto find_target = [&](RegionId id) {
      const OwnRegions::Region* const region = targets_.Take(transport.regions_, id);
      return region == nullptr ? RegionBytes() : region->bytes;
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
    if (targets_.AnyDamaged()) return CutShort("target");
    return absl::OkStatus();
  }

  void Done(absl::Status status) override {
    targets_.Clear();
    std::move(done_)(std::move(status));
    done_ = nullptr;
  }

 private:
  const LocalTransportOptions& options_;
  const Pools& pools_;
  Batch batch_;
  WriteDone done_;
  const PeerPool* seal_pool_ = nullptr;
  OwnRegions::Uses targets_;
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
  PAGEFERRY_RETURN_IF_ERROR(regions_.Add(region));
  return RemoteRegion{.id = region.id, .size = region.size, .local = region.local};
}

absl::Status LocalTransport::UnmapRegion(RegionId id) { return regions_.Remove(id); }

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
