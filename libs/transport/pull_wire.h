#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

/// What the two ends of a pull say to each other, see pull_target.h. Fixed layouts of little-endian
/// numbers, each with a number of its own in front. Bytes from the network: `Parse` checks length
/// and number, users check every field.
namespace pageferry::transport::wire {

static_assert(std::endian::native == std::endian::little,
              "messages are sent as they lie in memory");

/// Bytes that a data message carries, but for the last of a request, which has the rest. With it,
/// each message names its place by a number that can come once only.
inline constexpr int64_t kPayload = int64_t{256} << 10;
/// Most bytes and ranges of a request.
inline constexpr int64_t kMaxRequest = 4 * kPayload;
inline constexpr uint32_t kMaxRanges = 4096;
/// Most bytes that a target may have asked for and not yet got.
inline constexpr int64_t kMaxOutstanding = int64_t{64} << 20;

/// Secret of one accepted peer.
using Token = std::array<uint8_t, 16>;

/// Numbers of active messages.
enum class MessageId : uint8_t { kHail = 1, kHailReply = 2, kRead = 3, kData = 4, kDone = 5 };

/// The target shows its secret, and says which number its replies are to carry.
struct Hail {
  static constexpr uint32_t kMagic = 0x31'48'46'50;
  uint32_t magic = kMagic;
  uint32_t reserved = 0;
  Token token{};
  uint64_t nonce = 0;
};

struct HailReply {
  static constexpr uint32_t kMagic = 0x31'52'46'50;
  uint32_t magic = kMagic;
  uint32_t reserved = 0;
  uint64_t nonce = 0;
};

/// Asks for `bytes` bytes: its payload is `ranges` times a `Range`, whose sizes add up to them.
struct Read {
  static constexpr uint32_t kMagic = 0x31'51'46'50;
  uint32_t magic = kMagic;
  uint32_t ranges = 0;
  Token token{};
  uint64_t request = 0;  // drawn by the target, above the one before
  int64_t bytes = 0;
  int64_t seal_region = 0;
  uint64_t seal_value = 0;
  int32_t seal_index = 0;
  uint32_t reserved = 0;
};

struct Range {
  int64_t region = 0;
  int64_t offset = 0;
  int64_t size = 0;  // above 0
};

/// Its payload is the bytes of the request from `offset` on.
struct Data {
  static constexpr uint32_t kMagic = 0x31'44'46'50;
  uint32_t magic = kMagic;
  uint32_t reserved = 0;
  uint64_t nonce = 0;
  uint64_t request = 0;
  int64_t offset = 0;  // a multiple of kPayload
};

/// Behind all data of a request, or in place of it.
struct Done {
  static constexpr uint32_t kMagic = 0x31'45'46'50;
  enum Outcome : uint32_t {
    kOk = 0,          // the seal was whole after the last byte was read
    kSealBroken = 1,  // the source took its pages back
    kBadRange = 2,    // outside a region
    kDamaged = 3,     // the source's memory was cut short
    kCutOff = 4,      // the target broke the rules; it gets nothing any more
  };
  uint32_t magic = kMagic;
  uint32_t outcome = kOk;
  uint64_t nonce = 0;
  uint64_t request = 0;
};

/// The message in `bytes`; nothing if it is another one, or of another length.
template <class Message>
std::optional<Message> Parse(absl::string_view bytes) {
  static_assert(std::is_trivially_copyable_v<Message> &&
                std::has_unique_object_representations_v<Message>);
  if (bytes.size() != sizeof(Message)) return std::nullopt;
  Message message;
  std::memcpy(&message, bytes.data(), sizeof(message));
  if (message.magic != Message::kMagic) return std::nullopt;
  return message;
}

/// Where a worker is, as agents tell each other in Hello.
struct Address {
  /// Of the UCX that made it: two releases need not understand each other.
  uint16_t ucx_major = 0;
  uint16_t ucx_minor = 0;
  Token token{};  // zeros where the sender will not be read from
  std::string worker;

  friend bool operator==(const Address&, const Address&) = default;
};

std::string EncodeAddress(const Address& address);
/// kInvalidArgument, INVALID_FIELD.
absl::StatusOr<Address> DecodeAddress(absl::string_view bytes);

/// Draws from the system's generator.
Token DrawToken();

}  // namespace pageferry::transport::wire
