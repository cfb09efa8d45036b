#include "libs/transport/pull_target.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/types/span.h"
#include "libs/common/error.h"

namespace pageferry::transport {
namespace {

// Highest priority first, but for each eighth turn.
constexpr uint64_t kTurns = 8;

absl::Status StatusOf(uint32_t outcome) {
  switch (outcome) {
    case wire::Done::kOk:
      return absl::OkStatus();
    case wire::Done::kSealBroken:
      return MakeError(absl::StatusCode::kAborted, Reason::kSealBroken,
                       "the source took its pages back");
    case wire::Done::kBadRange:
      return MakeError(absl::StatusCode::kInvalidArgument, Reason::kBadPages,
                       "the source has no such bytes");
    case wire::Done::kCutOff:
      return MakeError(absl::StatusCode::kUnavailable, Reason::kTransport,
                       "the source does not serve this session any more", {{"transport", "tcp"}});
    case wire::Done::kDamaged:
    default:
      return MakeError(absl::StatusCode::kUnavailable, Reason::kTransport,
                       "the shared memory of the source was cut short", {{"transport", "tcp"}});
  }
}

absl::Status Cancelled() { return absl::CancelledError("the write was cancelled"); }

}  // namespace

struct PullTarget::Pull {
  int64_t serial = 0;
  Flow* flow = nullptr;
  SealRef seal;
  std::shared_ptr<CancelToken> cancel;
  PullSlicer slicer;
  OwnRegions::Uses uses;
  WriteDone done;
  bool asked = false;  // at least once: an empty batch has one request too, for its seal
  int64_t open = 0;    // requests

  bool has_more() const { return !asked || slicer.has_more(); }
  bool cancelled() const { return cancel != nullptr && cancel->cancelled(); }
};

struct PullTarget::Request {
  int64_t pull = 0;
  int64_t bytes = 0;
  std::vector<RemoteSegment> segments;
  std::vector<int64_t> ends;  // of each segment, counted from the request's first byte
  uint32_t missing = 0;       // bit i: message i has not come
  bool answered = false;
};

// Its first pull is the one that is asked for.
struct PullTarget::Flow {
  uint64_t id = 0;
  int32_t priority = 0;
  std::deque<Pull*> pulls;  // to be asked for
  int64_t alive = 0;        // pulls, with those that are asked for whole
  bool in_ring = false;
};

PullTarget::PullTarget(const Options& options, SendRead send)
    : options_(options), send_(std::move(send)), last_request_(options.first_request) {}

PullTarget::~PullTarget() { Fail(Cancelled()); }

void PullTarget::Write(Batch batch, PullPlan plan, OwnRegions::Uses uses, WriteDone done) {
  auto pull = std::make_unique<Pull>(Pull{
      .serial = ++last_serial_,
      .seal = batch.seal,
      .cancel = std::move(batch.cancel),
      .slicer = PullSlicer(std::move(plan), std::min(options_.slice, ByteCount(wire::kMaxRequest))),
      .uses = std::move(uses),
      .done = std::move(done)});
  const int64_t serial = pull->serial;
  std::unique_ptr<Flow>& flow = flows_[batch.flow];
  if (flow == nullptr) flow = std::make_unique<Flow>(Flow{.id = batch.flow});
  if (!flow->in_ring) {
    flow->priority = batch.priority;
    flow->in_ring = true;
    rings_[flow->priority].push_back(flow.get());
  }
  pull->flow = flow.get();
  flow->pulls.push_back(pull.get());
  ++flow->alive;
  pulls_.emplace(serial, std::move(pull));
  if (!failed_.ok()) return End(serial, failed_);
  Pump();
}

void PullTarget::Flush(WriteDone done) {
  flushes_.emplace_back(last_serial_, std::move(done));
  ReleaseFlushes();
}

PullTarget::Pull* PullTarget::Pick() {
  if (rings_.empty()) return nullptr;
  auto ring = rings_.begin();
  const uint64_t turn = ++turns_;
  if (turn % kTurns == 0) std::advance(ring, (turn / kTurns) % rings_.size());
  Flow* const flow = ring->second.front();
  ring->second.pop_front();
  Pull* const pull = flow->pulls.front();
  // A pull that is asked for whole leaves the flow's queue; its requests go on.
  if (pull->has_more()) {
    ring->second.push_back(flow);
    return pull;
  }
  flow->pulls.pop_front();
  if (!flow->pulls.empty()) {
    ring->second.push_back(flow);
    return nullptr;
  }
  flow->in_ring = false;
  if (ring->second.empty()) rings_.erase(ring);
  return nullptr;
}

void PullTarget::Pump() {
  while (outstanding_ < options_.window.value() && !rings_.empty()) {
    Pull* const pull = Pick();
    if (pull == nullptr) continue;
    if (pull->cancelled()) {
      End(pull->serial, Cancelled());
    } else {
      Ask(*pull);
    }
  }
}

void PullTarget::Ask(Pull& pull) {
  pull.slicer.Next(slice_);
  pull.asked = true;
  ++pull.open;
  auto request = std::make_unique<Request>(Request{.pull = pull.serial, .segments = slice_});
  std::vector<wire::Range> ranges;
  ranges.reserve(slice_.size());
  request->ends.reserve(slice_.size());
  for (const RemoteSegment& segment : slice_) {
    const auto size = static_cast<int64_t>(segment.size);
    request->bytes += size;
    request->ends.push_back(request->bytes);
    // Runs that lie together at the source go as one range.
    if (!ranges.empty() && ranges.back().region == segment.source.region.value() &&
        ranges.back().offset + ranges.back().size == segment.source.offset) {
      ranges.back().size += size;
    } else {
      ranges.push_back({segment.source.region.value(), segment.source.offset, size});
    }
  }
  const int64_t messages = (request->bytes + wire::kPayload - 1) / wire::kPayload;
  request->missing = (uint32_t{1} << static_cast<unsigned>(messages)) - 1;
  outstanding_ += request->bytes;
  const uint64_t id = ++last_request_;
  const wire::Read read{.ranges = static_cast<uint32_t>(ranges.size()),
                        .request = id,
                        .bytes = request->bytes,
                        .seal_region = pull.seal.region.value(),
                        .seal_value = pull.seal.value,
                        .seal_index = pull.seal.index};
  requests_.emplace(id, std::move(request));
  send_(read, std::move(ranges));
}

bool PullTarget::OnData(const wire::Data& data, absl::string_view payload) {
  const auto found = requests_.find(data.request);
  if (found == requests_.end()) return false;
  Request& request = *found->second;
  if (data.offset < 0 || data.offset >= request.bytes || data.offset % wire::kPayload != 0 ||
      static_cast<int64_t>(payload.size()) !=
          std::min(wire::kPayload, request.bytes - data.offset)) {
    return false;
  }
  const uint32_t bit = uint32_t{1} << static_cast<unsigned>(data.offset / wire::kPayload);
  if ((request.missing & bit) == 0) return false;
  const int64_t serial = request.pull;
  const Pull& pull = *pulls_.at(serial);
  if (pull.cancelled()) {
    End(serial, Cancelled());
    Pump();
    return true;
  }
  Place(request, data.offset, payload);
  request.missing &= ~bit;
  if (pull.uses.AnyDamaged()) {
    End(serial, MakeError(absl::StatusCode::kUnavailable, Reason::kTransport,
                          "the shared memory of the target was cut short", {{"transport", "tcp"}}));
  } else if (request.missing == 0 && request.answered) {
    FinishRequest(data.request);
  }
  Pump();
  return true;
}

void PullTarget::Place(const Request& request, int64_t offset, absl::string_view payload) {
  placing_.clear();
  auto segment =
      static_cast<size_t>(std::ranges::upper_bound(request.ends, offset) - request.ends.begin());
  const auto* source = reinterpret_cast<const std::byte*>(payload.data());
  auto left = static_cast<int64_t>(payload.size());
  while (left > 0) {
    const RemoteSegment& whole = request.segments[segment];
    const int64_t begin = request.ends[segment] - static_cast<int64_t>(whole.size);
    const int64_t size = std::min(left, request.ends[segment] - offset);
    placing_.push_back({source, whole.target + (offset - begin), static_cast<size_t>(size)});
    source += size;
    offset += size;
    left -= size;
    ++segment;
  }
  CopySegments(placing_);
}

bool PullTarget::OnDone(const wire::Done& done) {
  const auto found = requests_.find(done.request);
  if (found == requests_.end() || found->second->answered) return false;
  Request& request = *found->second;
  const absl::Status status = StatusOf(done.outcome);
  if (!status.ok()) {
    End(request.pull, status);
  } else {
    request.answered = true;
    if (request.missing == 0) FinishRequest(done.request);
  }
  Pump();
  return true;
}

void PullTarget::FinishRequest(uint64_t id) {
  const auto found = requests_.find(id);
  const int64_t serial = found->second->pull;
  outstanding_ -= found->second->bytes;
  requests_.erase(found);
  Pull& pull = *pulls_.at(serial);
  if (--pull.open == 0 && !pull.has_more()) {
    End(serial, pull.cancelled() ? Cancelled() : absl::OkStatus());
  }
}

void PullTarget::OnCancel() {
  std::vector<int64_t> over;
  for (const auto& [serial, pull] : pulls_) {
    if (pull->cancelled()) over.push_back(serial);
  }
  for (const int64_t serial : over) End(serial, Cancelled());
  Pump();
}

void PullTarget::Fail(const absl::Status& why) {
  if (failed_.ok()) failed_ = why;
  while (!pulls_.empty()) End(pulls_.begin()->first, why);
}

void PullTarget::End(int64_t serial, const absl::Status& status) {
  const auto found = pulls_.find(serial);
  if (found == pulls_.end()) return;
  const std::unique_ptr<Pull> pull = std::move(found->second);
  pulls_.erase(found);
  if (pull->open > 0) {
    absl::erase_if(requests_, [&](const auto& item) {
      if (item.second->pull != serial) return false;
      outstanding_ -= item.second->bytes;
      return true;
    });
  }
  Flow& flow = *pull->flow;
  std::erase(flow.pulls, pull.get());
  if (flow.pulls.empty() && flow.in_ring) {
    const auto ring = rings_.find(flow.priority);
    std::erase(ring->second, &flow);
    if (ring->second.empty()) rings_.erase(ring);
    flow.in_ring = false;
  }
  if (--flow.alive == 0) flows_.erase(flow.id);
  pull->uses.Clear();
  std::move(pull->done)(status);
  ReleaseFlushes();
}

void PullTarget::ReleaseFlushes() {
  while (!flushes_.empty() && (pulls_.empty() || pulls_.begin()->first > flushes_.front().first)) {
    WriteDone done = std::move(flushes_.front().second);
    flushes_.pop_front();
    std::move(done)(absl::OkStatus());
  }
}

}  // namespace pageferry::transport
