#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "libs/common/ids.h"
#include "libs/common/page_runs.h"

/// One interface for every way of moving pages. An agent has one `Transport`
/// for each way that its policy allows; a `TransportPeer` stands for one other
/// agent.
namespace pageferry::transport {

class SealTable;

/// Numbers of pageferry.peer.v1.TransportKind.
enum class TransportKind : int8_t { kLocal = 1, kRdma = 2, kTcp = 3, kGrpc = 4 };

/// "local", "rdma", "tcp", "grpc": as in flags, logs and metrics.
absl::string_view TransportName(TransportKind kind);
/// The reverse; nullopt for any other text.
std::optional<TransportKind> ParseTransportName(absl::string_view name);

/// Which side of a room calls `Write`: the one that moves the bytes.
enum class Driver : int8_t { kTarget, kSource };

/// Where the data of a pool lies that has its header and seals in a file of
/// their own: memory of the engine's, see imported_pool.h. Reached by its name
/// where it has one and still is what has it, else through the descriptor `fd`
/// that its agent, process `pid`, holds; device and inode prove that it is it.
struct LocalData {
  std::string shm_name;  // may be empty
  int64_t pid = 0;
  int64_t fd = 0;
  uint64_t device = 0;
  uint64_t inode = 0;
  ByteCount offset;  // of the data in that file

  friend bool operator==(const LocalData&, const LocalData&) = default;
};

/// How a process on the same host maps a region. See pool_layout.h for the
/// nonce.
struct LocalMapping {
  std::string shm_name;  // with its leading slash
  ByteCount mapping_size;
  ByteCount data_offset;
  uint64_t nonce = 0;
  /// Unset: the data follows header and seals in the same mapping.
  std::optional<LocalData> data = std::nullopt;

  friend bool operator==(const LocalMapping&, const LocalMapping&) = default;
};

/// Memory of this process that pages lie in. The memory is borrowed: it must
/// stay until `UnmapRegion` has returned.
struct OwnRegion {
  RegionId id;
  std::byte* data = nullptr;
  ByteCount size;
  std::optional<LocalMapping> local;
  /// The seals of its pool; null where it has none, and peers can have nothing of it but by
  /// `local`.
  SealTable* seals = nullptr;
};

/// What a peer told about one of its regions.
struct RemoteRegion {
  RegionId id;
  ByteCount size;
  uint64_t remote_address = 0;
  std::vector<std::string> remote_keys;
  std::optional<LocalMapping> local;

  friend bool operator==(const RemoteRegion&, const RemoteRegion&) = default;
};

/// Where the items of one source buffer go: item i of the source begins at
/// source_offset + i * item_size of its region, and so at the target.
struct EntryPair {
  RegionId source_region;
  ByteCount source_offset;
  RegionId target_region;
  ByteCount target_offset;
  ByteCount item_size;

  friend bool operator==(const EntryPair&, const EntryPair&) = default;
};

/// Moves the items of every run pair for every entry pair. Runs are found once
/// per room and stepped over the entries; nothing is expanded to single pages.
struct Step {
  std::shared_ptr<const std::vector<EntryPair>> entries;
  std::vector<RunPair> runs;
};

/// Names a seal in the source's memory.
struct SealRef {
  RegionId region;
  int32_t index = 0;
  uint64_t value = 0;

  friend bool operator==(const SealRef&, const SealRef&) = default;
};

/// Bytes that `steps` moves; saturates.
ByteCount BatchBytes(const std::vector<Step>& steps);

/// Asks running writes to stop. Thread-safe; once set it stays set.
class CancelToken {
 public:
  CancelToken();
  ~CancelToken();
  void Cancel();
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  /// Runs `wake` once when the token is set, on the thread that sets it; at once if it is set. For
  /// a way that sleeps until something comes from the network. `wake` must be short.
  void Watch(absl::AnyInvocable<void()> wake);

 private:
  struct Wakers;
  std::atomic<bool> cancelled_{false};
  const std::unique_ptr<Wakers> wakers_;
};

/// What is to be moved.
struct Batch {
  /// Batches of one flow (a room) go in order; flows share a transport fairly,
  /// a higher priority first.
  uint64_t flow = 0;
  int32_t priority = 0;
  std::vector<Step> steps;
  /// Checked after the last byte was read: by the target where it maps the source's memory, else by
  /// the source.
  SealRef seal;
  std::shared_ptr<CancelToken> cancel;
};

/// OK: every byte is in place at the target, and the seal was whole after the
/// last was read. kAborted, SEAL_BROKEN: the source took its pages back; what
/// was written is worthless. kCancelled: the token was set in time; some bytes
/// may have been written. kInvalidArgument, BAD_PAGES: a range lies outside a
/// region; nothing was written. kUnavailable, TRANSPORT: the peer or the way to
/// it failed. When it runs, the write touches no memory any more.
using WriteDone = absl::AnyInvocable<void(absl::Status)>;

/// The way to one other agent.
///
/// Thread-safe. Owns its mappings or endpoints. The destructor blocks until no
/// write touches memory any more; writes that were still queued end with
/// kCancelled, their callbacks run before it returns. Not to be destroyed from
/// a callback.
class TransportPeer {
 public:
  virtual ~TransportPeer() = default;

  /// Moves `batch`. `done` runs exactly once, on a thread of the transport,
  /// never inside this call, with no lock held; it must be short.
  virtual void Write(Batch batch, WriteDone done) = 0;

  /// Runs `done` with OK when every write begun before has ended. Same thread
  /// rules.
  virtual void Flush(WriteDone done) = 0;
};

/// This end of a way on which the other agent drives. It stays open as long as this lives.
///
/// The destructor blocks until no byte of own regions is read for that peer any more.
class PassivePeer {
 public:
  virtual ~PassivePeer() = default;
  /// What the other side needs for PeerSpec::address; may hold a secret.
  virtual std::string address() const = 0;
};

/// What is needed to reach another agent.
struct PeerSpec {
  std::string name;     // for logs: agent id and epoch
  std::string address;  // what the other side gave in Hello for this way; may be empty
  std::vector<RemoteRegion> regions;
};

/// One way of moving pages.
///
/// Thread-safe. Outlives its peers.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual TransportKind kind() const = 0;
  virtual Driver driver() const = 0;

  /// What is told to every agent that this one dials, for PeerSpec::address at `Accept`; may be
  /// empty.
  virtual std::string address() const = 0;

  /// Makes own memory known; it must be before peers use it. Answers what peers
  /// are to be told. kInvalidArgument, BAD_HANDLE; kResourceExhausted,
  /// OUT_OF_MEMORY where it cannot be registered.
  virtual absl::StatusOr<RemoteRegion> MapRegion(const OwnRegion& region) = 0;

  /// Forgets it. kFailedPrecondition, IN_USE while a write uses it. Unknown ids
  /// are fine.
  virtual absl::Status UnmapRegion(RegionId id) = 0;

  /// Opens the way to a peer; may map memory and thus block for a short time.
  /// kFailedPrecondition, NO_TRANSPORT: this way does not reach that peer, and
  /// why.
  virtual absl::StatusOr<std::unique_ptr<TransportPeer>> Connect(const PeerSpec& spec) = 0;

  /// The same for ways that have to wait for the other side: `done` runs once, on any thread,
  /// perhaps inside this call.
  using ConnectDone =
      absl::AnyInvocable<void(absl::StatusOr<std::unique_ptr<TransportPeer>> peer) &&>;
  virtual void ConnectLater(const PeerSpec& spec, ConnectDone done) {
    std::move(done)(Connect(spec));
  }

  /// The other end of `Connect`, before the peer is told to go on; does not block. Null where this
  /// process has nothing to do. kFailedPrecondition, NO_TRANSPORT as there.
  virtual absl::StatusOr<std::unique_ptr<PassivePeer>> Accept(const PeerSpec& /*spec*/) {
    return nullptr;
  }
};

}  // namespace pageferry::transport
