#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "libs/common/ids.h"
#include "libs/transport/host_pool.h"
#include "libs/transport/imported_pool.h"
#include "libs/transport/shm_pool.h"
#include "libs/transport/transport.h"
#include "services/transfer-agent/loop.h"
#include "services/transfer-agent/ports.h"
#include "services/transfer-agent/profile.h"
#include "services/transfer-agent/worker.h"

namespace pageferry::agent {

/// A pool as engines are told of it.
struct PoolView {
  std::string name;
  ByteCount size;
  transport::LocalMapping local;
  bool adopted = false;
  bool imported = false;
  bool read_only = false;
  transport::HugePagesGot huge;
};

/// Memory of the engine's that it wants to be a pool. Agent and folder are this agent's.
using PoolImport = transport::ImportOptions;

/// The pools of this agent by name, and the regions that peers know them by.
///
/// Loop-confined. Owns the pools; memory is made and freed on the worker, since that takes long.
/// Borrows the rest. The destructor removes the pools.
class PoolStore final : public SealPort {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<PoolView>)>;

  struct Options {
    AgentId agent;
    std::string shm_dir = "/dev/shm";
    size_t max_pools = 64;
    bool prefault = true;
    bool lock = false;
  };

  PoolStore(Loop& loop, Worker& worker, std::vector<transport::Transport*> transports,
            Options options);
  ~PoolStore() override;

  /// Makes a pool in host shared memory, adopts one that an earlier agent of this id left, or gives
  /// the live one.
  /// kAlreadyExists, POOL_EXISTS: it lives with another size, without the huge pages that are a
  /// must, or as an imported one. kResourceExhausted: OUT_OF_MEMORY, LIMIT_REACHED. Others as
  /// ShmPool::CreateOrAdopt.
  void Create(const std::string& name, ByteCount size, transport::HugePages huge_pages, Done done);

  /// Maps memory of the engine's, or gives the live pool where that is the same memory.
  /// kAlreadyExists, POOL_EXISTS: the name is another pool's. Others as ImportedPool::Open.
  void Import(PoolImport import, Done done);
  bool IsImported(const std::string& name) const;

  /// Forgets a pool; the caller knows that nothing uses it. kNotFound, POOL_NOT_FOUND;
  /// kFailedPrecondition, IN_USE while a write runs.
  absl::Status Release(const std::string& name);
  /// Releases all that can be.
  void ReleaseAll();

  /// Fills the regions of the engine's buffers. kNotFound, POOL_NOT_FOUND; kInvalidArgument,
  /// INVALID_FIELD: a buffer reaches beyond its pool, or a decode engine's is in a read-only one.
  absl::Status Resolve(EngineInfo& engine) const;
  /// What peers are told of the pools that `engine`, which is resolved, lies in.
  std::vector<transport::RemoteRegion> RegionsOf(const EngineInfo& engine) const;
  /// Seals are made in pools of this engine, so that its peers can see them.
  void SetSealRegions(const std::vector<transport::RemoteRegion>& regions);

  /// Breaks all seals of all pools and begins new generations. While no room lives.
  void BreakSeals();

  std::vector<PoolView> Views() const;
  ByteCount total() const;

  // SealPort
  absl::StatusOr<transport::SealRef> Make() override;
  void Break(const transport::SealRef& seal) override;

 private:
  struct Pool {
    std::unique_ptr<transport::HostPool> shm;
    RegionId region;
    transport::RemoteRegion remote;
  };

  using Made = absl::StatusOr<std::unique_ptr<transport::HostPool>>;

  /// Lets the worker do `make` and adds what it made; `again` runs in its place when that is done
  /// where somebody makes a pool of that name right now.
  void MakePool(const std::string& name, absl::AnyInvocable<Made()> make, Done done,
                absl::AnyInvocable<void(Done)> again);
  /// Answers an import whose name lives already.
  void CompareImport(PoolImport import, Done done);
  absl::StatusOr<PoolView> Add(const std::string& name, Made shm);
  absl::Status Unmap(const Pool& pool);
  Pool* FindRegion(RegionId region);

  Loop& loop_;
  Worker& worker_;
  const std::vector<transport::Transport*> transports_;
  const Options options_;
  std::map<std::string, Pool> pools_;
  std::set<std::string> making_;
  std::vector<RegionId> seal_regions_;
  RegionId last_region_;
};

}  // namespace pageferry::agent
