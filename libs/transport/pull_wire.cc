#include "libs/transport/pull_wire.h"

#include "absl/strings/str_cat.h"
#include "libs/common/backoff.h"
#include "libs/common/error.h"

namespace pageferry::transport::wire {
namespace {

struct AddressHead {
  static constexpr uint32_t kMagic = 0x31'41'46'50;
  uint32_t magic = kMagic;
  uint16_t ucx_major = 0;
  uint16_t ucx_minor = 0;
  Token token{};
};

constexpr size_t kMaxWorkerAddress = 16 << 10;

}  // namespace

std::string EncodeAddress(const Address& address) {
  const AddressHead head{
      .ucx_major = address.ucx_major, .ucx_minor = address.ucx_minor, .token = address.token};
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  bytes += address.worker;
  return bytes;
}

absl::StatusOr<Address> DecodeAddress(absl::string_view bytes) {
  const auto head = Parse<AddressHead>(bytes.substr(0, sizeof(AddressHead)));
  const size_t rest = bytes.size() - (head.has_value() ? sizeof(AddressHead) : bytes.size());
  if (!head.has_value() || rest == 0 || rest > kMaxWorkerAddress) {
    return InvalidField("transport.address", absl::StrCat(bytes.size(), " bytes"),
                        "the address of a UCX worker, as this release writes it");
  }
  return Address{.ucx_major = head->ucx_major,
                 .ucx_minor = head->ucx_minor,
                 .token = head->token,
                 .worker = std::string(bytes.substr(sizeof(AddressHead)))};
}

Token DrawToken() {
  const std::array<uint64_t, 2> words = {RandomSeed(), RandomSeed()};
  Token token;
  static_assert(sizeof(token) == sizeof(words));
  std::memcpy(token.data(), words.data(), sizeof(token));
  return token;
}

}  // namespace pageferry::transport::wire
