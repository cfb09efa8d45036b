#include "services/transfer-agent/room_placer.h"

#include <algorithm>
#include <iterator>

#include "libs/common/log.h"

namespace pageferry::agent {
namespace {

LogArea log_area("placer");

constexpr size_t kMaxBatch = 10'000;

}  // namespace

RoomPlacer::RoomPlacer(Loop& loop, BootstrapClient& client, const Backoff::Options& backoff)
    : loop_(loop), client_(client), backoff_(backoff, RandomSeed()), timer_(loop) {}

void RoomPlacer::SetEngine(const NamespaceName& name_space, const EngineId& engine,
                           int64_t dp_rank) {
  name_space_ = name_space;
  engine_ = engine;
  dp_rank_ = dp_rank;
  ++round_;
  waiting_.clear();
  in_flight_ = false;
  timer_.Clear();
}

void RoomPlacer::Place(RoomId room) {
  if (waiting_.size() >= kMaxWaiting) waiting_.erase(waiting_.begin());
  waiting_.push_back(room);
  if (!in_flight_ && timer_.deadline() == MonotonicTime::InfiniteFuture()) Send();
}

void RoomPlacer::Send() {
  if (waiting_.empty() || in_flight_) return;
  const auto end =
      waiting_.begin() + static_cast<std::ptrdiff_t>(std::min(waiting_.size(), kMaxBatch));
  const std::vector<RoomId> sent(waiting_.begin(), end);
  waiting_.erase(waiting_.begin(), end);
  std::vector<std::pair<RoomId, int64_t>> batch;
  batch.reserve(sent.size());
  for (const RoomId room : sent) batch.emplace_back(room, dp_rank_);
  in_flight_ = true;
  client_.PlaceRooms(name_space_, engine_, batch, absl::Seconds(5),
                     [this, round = round_, sent](const absl::Status& status) {
                       if (round != round_) return;
                       in_flight_ = false;
                       if (status.ok()) {
                         backoff_.Reset();
                         return Send();
                       }
                       Log(LogLevel::kWarning, log_area, "place_failed",
                           {{"rooms", sent.size()}, {"why", status}});
                       if (!IsUnreachable(status)) return Send();
                       waiting_.insert(waiting_.begin(), sent.begin(), sent.end());
                       timer_.Set(loop_.Now() + backoff_.Next(), [this] { Send(); });
                     });
}

}  // namespace pageferry::agent
