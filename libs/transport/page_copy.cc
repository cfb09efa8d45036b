#include "libs/transport/page_copy.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pageferry::transport {
namespace {

void CopyPlain(absl::Span<const Segment> segments) {
  for (const Segment& segment : segments) {
    std::memcpy(segment.target, segment.source, segment.size);
  }
}

#if defined(__x86_64__)

constexpr size_t kLanes = 4;
constexpr size_t kBlock = 128;
// Streaming stores need whole cache lines.
constexpr size_t kLine = 64;
// Below this, memcpy is as fast.
constexpr size_t kSmall = 512;
// Longer segments are cut, so that one of them alone also feeds all lanes.
constexpr size_t kPiece = size_t{64} << 10;

using Lanes = std::array<Segment, kLanes>;

struct Kernel {
  // Copies `size` bytes, a multiple of kBlock, in each lane. Targets are aligned to kLine.
  void (*four)(const Lanes& lanes, size_t size);
  void (*one)(const Segment& segment);
};

void FourSse2(const Lanes& lanes, size_t size) {
  for (size_t offset = 0; offset < size; offset += kBlock) {
#pragma GCC unroll 4
    for (const Segment& lane : lanes) {
      const auto* from = reinterpret_cast<const __m128i*>(lane.source + offset);
      auto* to = reinterpret_cast<__m128i*>(lane.target + offset);
#pragma GCC unroll 8
      for (size_t i = 0; i < kBlock / 16; ++i) _mm_stream_si128(to + i, _mm_loadu_si128(from + i));
    }
  }
}

void OneSse2(const Segment& segment) {
  const auto* from = reinterpret_cast<const __m128i*>(segment.source);
  auto* to = reinterpret_cast<__m128i*>(segment.target);
  for (size_t i = 0; i < segment.size / 16; i += 4) {
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) _mm_stream_si128(to + i + j, _mm_loadu_si128(from + i + j));
  }
}

[[gnu::target("avx2")]] void FourAvx2(const Lanes& lanes, size_t size) {
  for (size_t offset = 0; offset < size; offset += kBlock) {
#pragma GCC unroll 4
    for (const Segment& lane : lanes) {
      const auto* from = reinterpret_cast<const __m256i*>(lane.source + offset);
      auto* to = reinterpret_cast<__m256i*>(lane.target + offset);
#pragma GCC unroll 4
      for (size_t i = 0; i < kBlock / 32; ++i) {
        _mm256_stream_si256(to + i, _mm256_loadu_si256(from + i));
      }
    }
  }
}

[[gnu::target("avx2")]] void OneAvx2(const Segment& segment) {
  const auto* from = reinterpret_cast<const __m256i*>(segment.source);
  auto* to = reinterpret_cast<__m256i*>(segment.target);
  for (size_t i = 0; i < segment.size / 32; i += 4) {
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) {
      _mm256_stream_si256(to + i + j, _mm256_loadu_si256(from + i + j));
    }
  }
}

void Advance(Segment& segment, size_t size) {
  segment.source += size;
  segment.target += size;
  segment.size -= size;
}

// Hands out what lanes copy: pieces whose target is aligned and whose size is a multiple of kBlock.
// Copies by itself what is too small, and the ends.
class Feeder {
 public:
  explicit Feeder(absl::Span<const Segment> segments) : segments_(segments) {}

  bool Next(Segment& lane) {
    while (rest_.size > 0 || !segments_.empty()) {
      if (rest_.size == 0) {
        rest_ = segments_.front();
        segments_.remove_prefix(1);
        if (rest_.size < kSmall) {
          CopyPlain({&rest_, 1});
          rest_.size = 0;
          continue;
        }
        const size_t misaligned = reinterpret_cast<uintptr_t>(rest_.target) % kLine;
        if (misaligned != 0) Take(kLine - misaligned);
      }
      const size_t size = std::min(rest_.size, kPiece) / kBlock * kBlock;
      if (size == 0) {
        Take(rest_.size);
        continue;
      }
      lane = {rest_.source, rest_.target, size};
      Advance(rest_, size);
      return true;
    }
    return false;
  }

 private:
  void Take(size_t size) {
    std::memcpy(rest_.target, rest_.source, size);
    Advance(rest_, size);
  }

  absl::Span<const Segment> segments_;
  Segment rest_;
};

void CopyStreaming(absl::Span<const Segment> segments, const Kernel& kernel) {
  Feeder feeder(segments);
  Lanes lanes;
  bool more = true;
  for (Segment& lane : lanes) more = more && feeder.Next(lane);
  while (more) {
    size_t size = kPiece;
    for (const Segment& lane : lanes) size = std::min(size, lane.size);
    kernel.four(lanes, size);
    for (Segment& lane : lanes) {
      Advance(lane, size);
      if (lane.size == 0) more = feeder.Next(lane) && more;
    }
  }
  for (const Segment& lane : lanes) kernel.one(lane);
  // Streaming stores are weakly ordered: nothing that says "done" may overtake them.
  _mm_sfence();
}

#endif

}  // namespace

std::vector<CopyMethod> CopyMethods() {
  std::vector<CopyMethod> methods = {CopyMethod::kMemcpy};
#if defined(__x86_64__)
  methods.push_back(CopyMethod::kSse2);
  if (__builtin_cpu_supports("avx2")) methods.push_back(CopyMethod::kAvx2);
#endif
  return methods;
}

CopyMethod BestCopyMethod() {
  static const CopyMethod best = CopyMethods().back();
  return best;
}

void CopySegments(absl::Span<const Segment> segments) { CopySegments(segments, BestCopyMethod()); }

void CopySegments(absl::Span<const Segment> segments, CopyMethod method) {
  switch (method) {
    case CopyMethod::kMemcpy:
      return CopyPlain(segments);
#if defined(__x86_64__)
    case CopyMethod::kSse2:
      return CopyStreaming(segments, {&FourSse2, &OneSse2});
    case CopyMethod::kAvx2:
      return CopyStreaming(segments, {&FourAvx2, &OneAvx2});
#else
    case CopyMethod::kSse2:
    case CopyMethod::kAvx2:
      return CopyPlain(segments);
#endif
  }
}

}  // namespace pageferry::transport
