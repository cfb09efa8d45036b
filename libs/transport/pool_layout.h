#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

/// How the shared memory of an agent-owned pool is laid out. The agent writes
/// the control area, the engine maps the same memory read-write and keeps to
/// the data, peers on the host map it read-only.
///
///   0                    PoolHeader
///   kSealTableOffset     kSealCount seals, 8 bytes each
///   kPoolDataOffset      data; the size is in the header
///
/// Where the engine owns the data (an imported pool) this file has the first
/// two alone and says 0 as data_size.
///
/// The layout is shared with clients in other languages: a change needs a new
/// kPoolLayoutVersion. All words are in host byte order and naturally aligned.
namespace pageferry::transport {

inline constexpr uint64_t kPoolMagic = 0x3159'5252'4546'4750;  // "PGFERRY1" in memory
inline constexpr uint32_t kPoolLayoutVersion = 1;
inline constexpr int64_t kSealTableOffset = 4096;
inline constexpr int32_t kSealCount = 65'536;
/// 2 MiB, so that data can lie on huge pages.
inline constexpr int64_t kPoolDataOffset = int64_t{2} << 20;

/// A seal says that a room's pages may still be read. While it is whole the
/// word holds a value that no seal of this table had before; 0 is broken. The
/// owner breaks it before the pages are reused. A reader copies, then checks
/// that word and generation are what they were: as with a sequence lock, bytes
/// read before a check that passes were good.
using SealWord = std::atomic<uint64_t>;

/// The top 24 bits of a seal's value are the low 24 bits of the generation that
/// it was made in, the other 40 count. An engine whose agent died adds 1 to
/// `generation`: every seal made before, and any that the dead agent could
/// still make, is void from then on.
inline constexpr int kSealGenerationShift = 40;
inline constexpr uint64_t kSealCounterMask = (uint64_t{1} << kSealGenerationShift) - 1;

constexpr uint64_t MakeSealValue(uint64_t generation, uint64_t counter) {
  return (generation << kSealGenerationShift) | (counter & kSealCounterMask);
}

/// True where `value` can be a whole seal of `generation`.
constexpr bool SealIsOfGeneration(uint64_t value, uint64_t generation) {
  return value != 0 && (value >> kSealGenerationShift) == (generation & 0xff'ffff);
}

struct PoolHeader {
  uint64_t magic;                    // offset 0: kPoolMagic, written last when the pool is ready
  uint32_t layout_version;           // offset 8: kPoolLayoutVersion
  uint32_t seal_count;               // offset 12: kSealCount
  uint64_t nonce;                    // offset 16: random, drawn each time that an agent makes or
                                     // adopts it
  int64_t data_offset;               // offset 24: kPoolDataOffset
  int64_t data_size;                 // offset 32: bytes of data; 0 where it lies elsewhere
  std::atomic<uint64_t> generation;  // offset 40: see above; from 1
  char agent_id[136];                // offset 48: owner, NUL-terminated, for people
};
static_assert(offsetof(PoolHeader, generation) == 40);
static_assert(sizeof(PoolHeader) == 184);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace pageferry::transport
