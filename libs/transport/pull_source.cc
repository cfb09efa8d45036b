#include "libs/transport/pull_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/ids.h"
#include "libs/common/status.h"
#include "libs/transport/seal_table.h"

namespace pageferry::transport {
namespace {

constexpr size_t kMaxJobs = 1024;

absl::Status CheckSizes(const wire::Read& read, absl::Span<const wire::Range> ranges) {
  if (read.bytes < 0 || read.bytes > wire::kMaxRequest || ranges.size() > wire::kMaxRanges) {
    return InvalidField("read.bytes", absl::StrCat(read.bytes), absl::StrCat(wire::kMaxRequest));
  }
  int64_t sum = 0;
  for (const wire::Range& range : ranges) {
    if (range.size <= 0 || range.size > wire::kMaxRequest) {
      return InvalidField("range.size", absl::StrCat(range.size),
                          absl::StrCat("1 to ", wire::kMaxRequest));
    }
    sum += range.size;  // at most 4,096 times 1 MiB
  }
  if (sum == read.bytes) return absl::OkStatus();
  return InvalidField("read.bytes", absl::StrCat(read.bytes), absl::StrCat("the sum, ", sum));
}

}  // namespace

PullSource::PullSource(OwnRegions& regions, uint64_t nonce, int64_t max_in_flight, Port port)
    : regions_(regions),
      nonce_(nonce),
      max_in_flight_(std::max<int64_t>(max_in_flight, 1)),
      port_(std::move(port)) {}

absl::Status PullSource::Check(const wire::Read& read, absl::Span<const wire::Range> ranges) const {
  PAGEFERRY_RETURN_IF_ERROR(cut_off_);
  PAGEFERRY_RETURN_IF_ERROR(CheckSizes(read, ranges));
  if (jobs_.contains(read.request)) {
    return InvalidField("read.request", absl::StrCat(read.request), "a number not in use");
  }
  if (jobs_.size() < kMaxJobs && asked_ + read.bytes <= wire::kMaxOutstanding) {
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached,
                   "the peer asks for more than it may at once",
                   {{"limit", "bytes_asked"}, {"value", absl::StrCat(asked_)}});
}

absl::Status PullSource::OnRead(const wire::Read& read, absl::Span<const wire::Range> ranges) {
  cut_off_ = Check(read, ranges);
  if (!cut_off_.ok()) {
    port_.send_done({.outcome = wire::Done::kCutOff, .nonce = nonce_, .request = read.request});
    return cut_off_;
  }
  Job job{.request = read.request, .bytes = read.bytes};
  const wire::Done::Outcome outcome = Prepare(read, ranges, job);
  if (outcome != wire::Done::kOk) {
    port_.send_done({.outcome = outcome, .nonce = nonce_, .request = read.request});
    return absl::OkStatus();
  }
  asked_ += job.bytes;
  jobs_.emplace(read.request, std::move(job));
  waiting_.push_back(read.request);
  Pump();
  return absl::OkStatus();
}

wire::Done::Outcome PullSource::Prepare(const wire::Read& read,
                                        absl::Span<const wire::Range> ranges, Job& job) {
  const OwnRegions::Region* const sealed = job.uses.Take(regions_, RegionId(read.seal_region));
  if (sealed == nullptr || sealed->seals == nullptr) return wire::Done::kBadRange;
  job.seals = sealed->seals;
  job.seal_index = read.seal_index;
  job.seal_value = read.seal_value;
  if (!job.seals->IsWhole({.index = read.seal_index, .value = read.seal_value})) {
    return wire::Done::kSealBroken;
  }
  job.parts.reserve(ranges.size());
  for (const wire::Range& range : ranges) {
    const OwnRegions::Region* const region = job.uses.Take(regions_, RegionId(range.region));
    // A region without seals is lent to nobody.
    if (region == nullptr || region->seals == nullptr || range.offset < 0 ||
        range.size > region->bytes.size || range.offset > region->bytes.size - range.size) {
      return wire::Done::kBadRange;
    }
    job.parts.emplace_back(region->bytes.data + range.offset, static_cast<size_t>(range.size));
  }
  return wire::Done::kOk;
}

void PullSource::Pump() {
  // A message may be sent, and told as sent, inside the call that hands it over.
  if (std::exchange(pumping_, true)) return;
  while (in_flight_ < max_in_flight_ && !waiting_.empty()) {
    const uint64_t request = waiting_.front();
    Job& job = jobs_.at(request);
    if (job.sent == job.bytes) {
      waiting_.pop_front();
      if (job.open == 0) Finish(job);
      continue;
    }
    ++job.open;
    ++in_flight_;
    port_.send_data(Cut(job));
  }
  pumping_ = false;
}

PullSource::Message PullSource::Cut(Job& job) const {
  Message message{.data = {.nonce = nonce_, .request = job.request, .offset = job.sent}};
  auto left = static_cast<size_t>(std::min(wire::kPayload, job.bytes - job.sent));
  job.sent += static_cast<int64_t>(left);
  while (left > 0) {
    const absl::Span<const std::byte> part = job.parts[job.part].subspan(job.offset, left);
    message.parts.push_back(part);
    left -= part.size();
    job.offset += part.size();
    if (job.offset == job.parts[job.part].size()) {
      ++job.part;
      job.offset = 0;
    }
  }
  return message;
}

void PullSource::OnSent(uint64_t request) {
  --in_flight_;
  const auto found = jobs_.find(request);
  if (found != jobs_.end() && --found->second.open == 0 &&
      found->second.sent == found->second.bytes && !pumping_) {
    std::erase(waiting_, request);
    Finish(found->second);
  }
  Pump();
}

void PullSource::Finish(const Job& job) {
  wire::Done done{.nonce = nonce_, .request = job.request};
  if (!job.seals->IsWhole({.index = job.seal_index, .value = job.seal_value})) {
    done.outcome = wire::Done::kSealBroken;
  } else if (job.uses.AnyDamaged()) {
    done.outcome = wire::Done::kDamaged;
  }
  asked_ -= job.bytes;
  jobs_.erase(done.request);
  if (!stopped_) port_.send_done(done);
}

void PullSource::Stop() {
  stopped_ = true;
  waiting_.clear();
  absl::erase_if(jobs_, [&](auto& item) {
    Job& job = item.second;
    job.sent = job.bytes;  // nothing more
    if (job.open > 0) return false;
    asked_ -= job.bytes;
    return true;
  });
}

}  // namespace pageferry::transport
