#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "libs/transport/own_regions.h"
#include "libs/transport/pull_wire.h"

namespace pageferry::transport {

/// The sending end of one peer: answers requests with the bytes of own regions, as long as the seal
/// that they name is whole.
///
/// A request whose seal is broken, or that reaches beyond a region, gets no byte. The seal is
/// looked at again when the last byte has been read, so that "done" means that all bytes were those
/// that were offered; the argument is that of seal_table.h.
///
/// Bounded by `max_in_flight` messages handed to the network, and by what a peer may ask for at
/// once (wire::kMaxOutstanding).
///
/// Thread-compatible. Borrows the regions; keeps those in use from being unmapped.
class PullSource {
 public:
  /// Bytes of one message; they must not be changed until OnSent.
  struct Message {
    wire::Data data;
    std::vector<absl::Span<const std::byte>> parts;
  };
  struct Port {
    /// Hands a message to the network: OnSent follows, perhaps at once.
    std::function<void(Message message)> send_data;
    std::function<void(const wire::Done& done)> send_done;
  };

  PullSource(OwnRegions& regions, uint64_t nonce, int64_t max_in_flight, Port port);

  /// An error is a breach of the protocol: from then on the peer gets no byte, and each request is
  /// answered so. kInvalidArgument, INVALID_FIELD; kResourceExhausted, LIMIT_REACHED.
  absl::Status OnRead(const wire::Read& read, absl::Span<const wire::Range> ranges);
  /// The network has read all bytes of a message of this request.
  void OnSent(uint64_t request);
  /// Forgets what was not handed to the network yet. What was keeps its regions until OnSent.
  void Stop();

  bool idle() const { return jobs_.empty(); }

 private:
  struct Job {
    uint64_t request = 0;
    int64_t bytes = 0;
    int64_t sent = 0;  // handed over
    int64_t open = 0;  // messages that the network may still read
    size_t part = 0;   // next to be sent, and where in it
    size_t offset = 0;
    std::vector<absl::Span<const std::byte>> parts;
    OwnRegions::Uses uses;
    SealTable* seals = nullptr;
    int32_t seal_index = 0;
    uint64_t seal_value = 0;
  };

  absl::Status Check(const wire::Read& read, absl::Span<const wire::Range> ranges) const;
  wire::Done::Outcome Prepare(const wire::Read& read, absl::Span<const wire::Range> ranges,
                              Job& job);
  void Pump();
  Message Cut(Job& job) const;
  void Finish(const Job& job);

  OwnRegions& regions_;
  const uint64_t nonce_;
  const int64_t max_in_flight_;
  const Port port_;
  absl::flat_hash_map<uint64_t, Job> jobs_;
  std::deque<uint64_t> waiting_;  // not handed over whole yet, in order
  int64_t asked_ = 0;             // bytes of all jobs
  int64_t in_flight_ = 0;
  bool pumping_ = false;
  bool stopped_ = false;
  absl::Status cut_off_;
};

}  // namespace pageferry::transport
