#include "tests/fakes/fake_ports.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/common/error.h"

namespace pageferry::agent {

absl::StatusOr<transport::SealRef> FakeSeals::Make() {
  if (static_cast<int64_t>(whole.size()) >= limit) {
    return MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached, "no seal left");
  }
  whole.insert(++last_);
  return transport::SealRef{.region = region, .index = 0, .value = last_};
}

void FakeSeals::Break(const transport::SealRef& seal) {
  ++broken;
  if (whole.erase(seal.value) == 0) ++broken_twice;
}

}  // namespace pageferry::agent
