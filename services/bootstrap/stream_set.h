#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace pageferry::bootstrap {

/// The open streams of one rpc, so that a drain reaches them. Thread-safe.
template <class Stream>
class StreamSet {
 public:
  StreamSet() = default;
  StreamSet(const StreamSet&) = delete;
  StreamSet& operator=(const StreamSet&) = delete;
  /// Comes after the last Remove, also in the eyes of a checker that does not see how the gRPC
  /// server waited for it.
  ~StreamSet() { const absl::MutexLock lock(&mutex_); }

  /// False once stopped: end the stream.
  bool Add(const std::shared_ptr<Stream>& stream) {
    const absl::MutexLock lock(&mutex_);
    if (stopped_) return false;
    streams_.emplace(stream.get(), stream);
    return true;
  }
  void Remove(const Stream* stream) {
    const absl::MutexLock lock(&mutex_);
    streams_.erase(stream);
  }
  /// Calls OnStop of all, with no lock held; Add answers false from now on.
  void Stop() {
    std::vector<std::shared_ptr<Stream>> streams;
    {
      const absl::MutexLock lock(&mutex_);
      stopped_ = true;
      for (const auto& [key, stream] : streams_) {
        if (auto alive = stream.lock()) streams.push_back(std::move(alive));
      }
    }
    for (const auto& stream : streams) stream->OnStop();
  }

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<const Stream*, std::weak_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pageferry::bootstrap
