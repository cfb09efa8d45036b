#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "libs/common/ids.h"
#include "libs/transport/own_regions.h"
#include "libs/transport/page_copy.h"
#include "libs/transport/pull_wire.h"
#include "libs/transport/slicer.h"
#include "libs/transport/transport.h"

namespace pageferry::transport {

/// The receiving end of one peer: asks for slices of what batches name, and places the bytes that
/// come.
///
/// Only what was asked for is ever written: a data message names a request and a place in it, never
/// memory; the request knows where its bytes go. A request that was given up, or one of an earlier
/// session or process, is unknown, and what comes for it is dropped. Check and placement are one
/// step of one thread, so that a write that ended touches nothing any more, whatever is still on
/// its way (I1). A batch succeeds when each of its requests has every byte, once, and the source
/// has found the seal whole behind the last read.
///
/// Bounded by `window` bytes asked for. Flows of one priority take turns, slice by slice; of eight
/// turns seven go to the highest priority and one to the next lower in rotation.
///
/// Thread-compatible, and no callback may destroy it. Pure but for the memory that it writes.
class PullTarget {
 public:
  struct Options {
    ByteCount window = ByteCount(16 << 20);
    ByteCount slice = ByteCount(wire::kMaxRequest);
    /// Numbers of requests begin behind it. Random, so that a request of an earlier life with this
    /// peer is taken for none of this one.
    uint64_t first_request = 0;
  };
  /// Puts a request on its way; `read.token` is the port's to fill.
  using SendRead = std::function<void(const wire::Read& read, std::vector<wire::Range> ranges)>;

  PullTarget(const Options& options, SendRead send);
  ~PullTarget();

  /// Moves the bytes of `plan`; `uses` keeps their memory. `done` runs once.
  void Write(Batch batch, PullPlan plan, OwnRegions::Uses uses, WriteDone done);
  /// `done` runs when all that was begun before has ended; perhaps now.
  void Flush(WriteDone done);

  /// False: it was not asked for, and nothing has changed.
  bool OnData(const wire::Data& data, absl::string_view payload);
  bool OnDone(const wire::Done& done);
  /// Ends what was cancelled.
  void OnCancel();
  /// Ends everything, and whatever is begun later.
  void Fail(const absl::Status& why);

  /// Nothing is asked for and nothing waits.
  bool idle() const { return pulls_.empty(); }

 private:
  struct Pull;
  struct Request;
  struct Flow;

  void Pump();
  Pull* Pick();
  void Ask(Pull& pull);
  void Place(const Request& request, int64_t offset, absl::string_view payload);
  void FinishRequest(uint64_t id);
  void End(int64_t serial, const absl::Status& status);
  void ReleaseFlushes();

  const Options options_;
  const SendRead send_;
  absl::Status failed_;
  int64_t last_serial_ = 0;
  uint64_t last_request_;
  uint64_t turns_ = 0;
  int64_t outstanding_ = 0;
  std::map<int64_t, std::unique_ptr<Pull>> pulls_;  // by serial: in the order of Write
  absl::flat_hash_map<uint64_t, std::unique_ptr<Flow>> flows_;
  /// Flows with something to be asked for, by priority; no ring is empty.
  std::map<int32_t, std::deque<Flow*>, std::greater<>> rings_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Request>> requests_;
  std::deque<std::pair<int64_t, WriteDone>> flushes_;  // by the last serial that is waited for
  std::vector<RemoteSegment> slice_;
  std::vector<Segment> placing_;
};

}  // namespace pageferry::transport
