#include "tests/fakes/fake_transport.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "libs/common/error.h"
#include "libs/common/status.h"
#include "libs/transport/slicer.h"

namespace pageferry::transport {
namespace {

absl::Status PeerFailed(const std::string& name) {
  return MakeError(absl::StatusCode::kUnavailable, Reason::kTransport, name + " is dead",
                   {{"transport", "fake"}});
}

bool Names(const Batch& batch, RegionId id) {
  for (const Step& step : batch.steps) {
    if (step.entries == nullptr) continue;
    for (const EntryPair& entry : *step.entries) {
      if (entry.source_region == id || entry.target_region == id) return true;
    }
  }
  return false;
}

}  // namespace

class FakeTransport::Peer final : public TransportPeer {
 public:
  Peer(FakeTransport& transport, PeerSpec spec) : transport_(transport), spec_(std::move(spec)) {}
  ~Peer() override { transport_.RemovePeer(*this); }

  void Write(Batch batch, WriteDone done) override {
    transport_.Push(*this, spec_, std::move(batch), std::move(done));
  }
  void Flush(WriteDone done) override { transport_.PushFlush(*this, std::move(done)); }

 private:
  FakeTransport& transport_;
  const PeerSpec spec_;
};

FakeTransport::FakeTransport(FakeNetwork& network, Options options)
    : network_(network), options_(std::move(options)) {
  const absl::MutexLock lock(&network_.mutex_);
  network_.transports_[options_.address] = this;
}

FakeTransport::~FakeTransport() {
  const absl::MutexLock lock(&network_.mutex_);
  network_.transports_.erase(options_.address);
}

absl::StatusOr<RemoteRegion> FakeTransport::MapRegion(const OwnRegion& region) {
  const absl::MutexLock lock(&mutex_);
  if (region.data == nullptr || region.size.value() <= 0 ||
      !regions_.emplace(region.id, region).second) {
    return MakeError(absl::StatusCode::kInvalidArgument, Reason::kBadHandle, "bad region");
  }
  return RemoteRegion{.id = region.id, .size = region.size, .local = region.local};
}

absl::Status FakeTransport::UnmapRegion(RegionId id) {
  const absl::MutexLock lock(&mutex_);
  for (const auto& [write_id, write] : writes_) {
    if (Names(write.batch, id)) {
      return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInUse, "being written");
    }
  }
  regions_.erase(id);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TransportPeer>> FakeTransport::Connect(const PeerSpec& spec) {
  const bool there = FindOther(spec.address) != nullptr;
  const absl::MutexLock lock(&mutex_);
  if (!there || killed_.contains(spec.name)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport,
                     "no such address: " + spec.address);
  }
  return std::make_unique<Peer>(*this, spec);
}

void FakeTransport::Push(const Peer& peer, const PeerSpec& spec, Batch batch, WriteDone done) {
  const absl::Status checked = Move(batch, spec.address, /*copy=*/false);
  const absl::MutexLock lock(&mutex_);
  Write write;
  write.info = {.id = ++last_id_,
                .peer = spec.name,
                .flow = batch.flow,
                .priority = batch.priority,
                .bytes = BatchBytes(batch.steps),
                .seal = batch.seal};
  write.peer = &peer;
  write.address = spec.address;
  write.batch = std::move(batch);
  write.done = std::move(done);
  write.status = checked;
  const auto failure = failures_.find(last_id_);
  if (failure != failures_.end()) write.status = failure->second;
  writes_.emplace(last_id_, std::move(write));
}

void FakeTransport::PushFlush(const Peer& peer, WriteDone done) {
  const absl::MutexLock lock(&mutex_);
  flushes_.emplace_back(std::make_pair(&peer, last_id_), std::move(done));
}

void FakeTransport::RemovePeer(const Peer& peer) {
  while (true) {
    int64_t id = 0;
    {
      const absl::MutexLock lock(&mutex_);
      for (const auto& [write_id, write] : writes_) {
        if (id == 0 && write.peer == &peer) id = write_id;
      }
    }
    if (id == 0) break;
    End(id, absl::CancelledError("the peer was closed"));
  }
  RunDue();
}

std::vector<FakeTransport::Pending> FakeTransport::pending() const {
  const absl::MutexLock lock(&mutex_);
  std::vector<Pending> all;
  for (const auto& [id, write] : writes_) {
    all.push_back(write.info);
    all.back().cancelled = write.batch.cancel != nullptr && write.batch.cancel->cancelled();
  }
  return all;
}

bool FakeTransport::IsNext(Writes::const_iterator write) const {
  return write != writes_.end() && std::none_of(writes_.begin(), write, [&](const auto& earlier) {
           return earlier.second.peer == write->second.peer &&
                  earlier.second.info.flow == write->second.info.flow;
         });
}

bool FakeTransport::CopyOnly(int64_t id) {
  Batch batch;
  std::string address;
  {
    const absl::MutexLock lock(&mutex_);
    const auto write = writes_.find(id);
    if (!IsNext(write) || !write->second.status.ok()) return false;
    batch = write->second.batch;
    address = write->second.address;
  }
  return Move(batch, address, /*copy=*/true).ok();
}

bool FakeTransport::Complete(int64_t id) {
  Batch batch;
  std::string address;
  absl::Status status;
  {
    const absl::MutexLock lock(&mutex_);
    const auto write = writes_.find(id);
    if (!IsNext(write)) return false;
    batch = write->second.batch;
    address = write->second.address;
    status = write->second.status;
    if (status.ok() && killed_.contains(write->second.info.peer)) {
      status = PeerFailed(write->second.info.peer);
    }
  }
  if (status.ok() && batch.cancel != nullptr && batch.cancel->cancelled()) {
    status = absl::CancelledError("the write was cancelled");
  }
  if (status.ok()) status = Move(batch, address, /*copy=*/true);
  FakeTransport* other = FindOther(address);
  if (status.ok() && options_.driver == Driver::kTarget && other->SealIsBroken(batch.seal)) {
    status = MakeError(absl::StatusCode::kAborted, Reason::kSealBroken, "seal broken");
  }
  return End(id, std::move(status));
}

bool FakeTransport::CompleteNext() {
  const std::vector<Pending> writes = pending();
  if (writes.empty()) RunDue();
  return !writes.empty() && Complete(writes.front().id);
}

size_t FakeTransport::CompleteAll() {
  size_t count = 0;
  while (CompleteNext()) ++count;
  return count;
}

bool FakeTransport::End(int64_t id, absl::Status status) {
  Write ended;
  {
    const absl::MutexLock lock(&mutex_);
    const auto write = writes_.find(id);
    if (!IsNext(write)) return false;
    ended = std::move(write->second);
    writes_.erase(write);
  }
  ended.done(std::move(status));
  RunDue();
  return true;
}

void FakeTransport::RunDue() {
  std::vector<WriteDone> due;
  {
    const absl::MutexLock lock(&mutex_);
    for (auto& [after, done] : flushes_) {
      bool waits = false;
      for (const auto& [id, write] : writes_) {
        waits = waits || (write.peer == after.first && id <= after.second);
      }
      if (!waits) due.push_back(std::exchange(done, nullptr));
    }
    std::erase_if(flushes_, [](const auto& flush) { return flush.second == nullptr; });
  }
  for (WriteDone& done : due) done(absl::OkStatus());
}

void FakeTransport::FailWrite(int64_t nth, absl::Status status) {
  const absl::MutexLock lock(&mutex_);
  failures_[last_id_ + nth] = std::move(status);
}

void FakeTransport::KillPeer(const std::string& name) {
  std::vector<int64_t> ids;
  {
    const absl::MutexLock lock(&mutex_);
    killed_.insert(name);
    for (const auto& [id, write] : writes_) {
      if (write.info.peer == name) ids.push_back(id);
    }
  }
  for (const int64_t id : ids) End(id, PeerFailed(name));
}

void FakeTransport::BreakSeal(const SealRef& seal) {
  const absl::MutexLock lock(&mutex_);
  broken_.emplace(seal.region, seal.value);
}

bool FakeTransport::SealIsBroken(const SealRef& seal) const {
  const absl::MutexLock lock(&mutex_);
  return broken_.contains({seal.region, seal.value});
}

FakeTransport* FakeTransport::FindOther(const std::string& address) const {
  const absl::MutexLock lock(&network_.mutex_);
  const auto other = network_.transports_.find(address);
  return other == network_.transports_.end() ? nullptr : other->second;
}

OwnRegion FakeTransport::FindOwn(RegionId id) const {
  const absl::MutexLock lock(&mutex_);
  const auto region = regions_.find(id);
  return region == regions_.end() ? OwnRegion() : region->second;
}

absl::Status FakeTransport::Move(const Batch& batch, const std::string& address, bool copy) {
  const FakeTransport* other = FindOther(address);
  if (other == nullptr) return PeerFailed(address);
  const auto find_in = [](const FakeTransport* transport) {
    return [transport](RegionId id) {
      const OwnRegion region = transport->FindOwn(id);
      return RegionBytes{region.data, region.size.value()};
    };
  };
  const bool pull = options_.driver == Driver::kTarget;
  const auto find_source = find_in(pull ? other : this);
  const auto find_target = find_in(pull ? this : other);
  PAGEFERRY_ASSIGN_OR_RETURN(CopyPlan plan, PlanCopy(batch.steps, find_source, find_target));
  if (!copy) return absl::OkStatus();
  Slicer slicer(std::move(plan), ByteCount(std::numeric_limits<int64_t>::max()));
  std::vector<Segment> segments;
  while (slicer.has_more()) {
    slicer.Next(segments);
    for (const Segment& segment : segments) {
      std::memcpy(segment.target, segment.source, segment.size);
    }
  }
  return absl::OkStatus();
}

}  // namespace pageferry::transport
