#include "libs/common/status.h"

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace pageferry {

absl::Status Annotate(const absl::Status& status, absl::string_view text) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(text, ": ", status.message()));
  status.ForEachPayload([&annotated](absl::string_view type_url, const absl::Cord& payload) {
    annotated.SetPayload(type_url, payload);
  });
  return annotated;
}

}  // namespace pageferry
