#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "libs/common/ids.h"
#include "pageferry/bootstrap/v1/bootstrap.pb.h"
#include "services/bootstrap/records.h"
#include "services/bootstrap/validate.h"

/// Writes our own types into answers.
namespace pageferry::bootstrap {

void ToProto(const EngineKey& key, v1::EngineKey& out);
void ToProto(absl::Duration duration, google::protobuf::Duration& out);

/// `now` is given where times to live are told.
void ToProto(const RankView& rank, const RankCoordinate& coordinate,
             std::optional<MonotonicTime> now, v1::Rank& out);
void ToProto(const EngineView& view, bool with_ranks, std::optional<MonotonicTime> now,
             v1::Engine& out);

/// A LeaseState for each renewal.
void ToProto(const std::vector<Renewal>& renewals, v1::KeepAliveResponse& out);

/// Part of a serialised message, shared by all streams that it is written to.
using SharedBytes = std::shared_ptr<const std::string>;  // shared: that is its purpose

/// An engine, serialised once for all watchers, when the first of them needs it. Thread-safe.
class EncodedEngine {
 public:
  explicit EncodedEngine(EngineViewPtr view) : view_(std::move(view)) {}

  const EngineView& view() const { return *view_; }

  /// The field `engines` of a Snapshot or Change, with tag and length.
  SharedBytes Field(bool with_ranks);

 private:
  const EngineViewPtr view_;
  absl::Mutex mutex_;
  SharedBytes plain_ ABSL_GUARDED_BY(mutex_);
  SharedBytes with_ranks_ ABSL_GUARDED_BY(mutex_);
};

/// A serialised WatchEnginesResponse, in pieces that follow each other.
struct WatchMessage {
  std::vector<SharedBytes> pieces;
  size_t size = 0;
};

/// `engines` are fields as made by EncodedEngine.
WatchMessage MakeSnapshot(TableVersion version, std::vector<SharedBytes> engines, bool warming_up);
WatchMessage MakeChange(TableVersion version, std::vector<SharedBytes> engines,
                        const std::vector<EngineKey>& removed);
WatchMessage MakeProgress(TableVersion version);

/// kResourceExhausted, TOO_LARGE: an answer of `bytes` does not fit a message.
absl::Status TooLargeToSend(size_t bytes, size_t allowed);

}  // namespace pageferry::bootstrap
