#include "services/transfer-agent/convert_pool.h"

#include <cstdint>

#include "libs/common/error.h"
#include "libs/common/status.h"
#include "services/transfer-agent/validate.h"

namespace pageferry::agent {
namespace {

constexpr int64_t kMaxPath = 4096;

bool IsHost(int kind) {
  return kind == agent_pb::MEMORY_KIND_HOST_SHM || kind == agent_pb::MEMORY_KIND_HOST_SHM_HUGE;
}

absl::Status UnsupportedMemory(int kind) {
  return MakeError(absl::StatusCode::kUnimplemented, Reason::kUnsupported,
                   "this agent has pools in host shared memory only",
                   {{"feature", agent_pb::MemoryKind_Name(kind)}});
}

/// What both requests have in common.
template <class Request>
absl::Status CheckCommon(const Request& request) {
  PAGEFERRY_RETURN_IF_ERROR(CheckName("name", request.name(), 64));
  PAGEFERRY_RETURN_IF_ERROR(
      CheckRange("size_bytes", request.size_bytes(), 4096, int64_t{16} << 40));
  PAGEFERRY_RETURN_IF_ERROR(
      CheckEnum("memory_kind", request.memory_kind(), agent_pb::MemoryKind_IsValid));
  if (!IsHost(request.memory_kind())) return UnsupportedMemory(request.memory_kind());
  return CheckRange("device", request.device(), 0, 0);
}

}  // namespace

absl::Status CheckPool(const agent_pb::CreatePoolRequest& request) { return CheckCommon(request); }

transport::HugePages HugePagesOf(const agent_pb::CreatePoolRequest& request) {
  if (request.memory_kind() == agent_pb::MEMORY_KIND_HOST_SHM_HUGE) {
    return transport::HugePages::kRequire;
  }
  return request.prefer_huge_pages() ? transport::HugePages::kPrefer : transport::HugePages::kNo;
}

absl::StatusOr<PoolImport> FromProto(const agent_pb::ImportPoolRequest& request) {
  PAGEFERRY_RETURN_IF_ERROR(CheckCommon(request));
  PAGEFERRY_RETURN_IF_ERROR(CheckSize("shm_name", request.shm_name(), 255));
  PAGEFERRY_RETURN_IF_ERROR(CheckSize("memory_file", request.memory_file(), kMaxPath));
  PAGEFERRY_RETURN_IF_ERROR(
      CheckRange("data_offset_bytes", request.data_offset_bytes(), 0, int64_t{1} << 62));
  if (request.shm_name().empty() && request.memory_file().empty()) {
    return InvalidField("handle", "", "shm_name or memory_file");
  }
  return PoolImport{
      .name = request.name(),
      .size = ByteCount(request.size_bytes()),
      .data_offset = ByteCount(request.data_offset_bytes()),
      .shm_name = request.shm_name(),
      .memory_file = request.memory_file(),
      .read_only = request.read_only(),
      .huge = request.memory_kind() == agent_pb::MEMORY_KIND_HOST_SHM_HUGE,
  };
}

void ToProto(const PoolView& view, agent_pb::Pool& proto) {
  proto.set_name(view.name);
  proto.set_size_bytes(view.size.value());
  proto.set_memory_kind(view.huge.bytes >= view.size ? agent_pb::MEMORY_KIND_HOST_SHM_HUGE
                                                     : agent_pb::MEMORY_KIND_HOST_SHM);
  proto.set_shm_name(view.local.shm_name);
  proto.set_mapping_bytes(view.local.mapping_size.value());
  proto.set_data_offset_bytes(view.local.data_offset.value());
  proto.set_imported(view.imported);
  proto.set_huge_bytes(view.huge.bytes.value());
  proto.set_huge_pages_note(view.huge.why);
  proto.set_read_only(view.read_only);
}

}  // namespace pageferry::agent
