#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pageferry {

/// `status` with "`text`: " put before its message; code and payloads (the reason) are kept.
/// An OK status stays as it is.
absl::Status Annotate(const absl::Status& status, absl::string_view text);

}  // namespace pageferry

/// Returns from the enclosing function when the status `expr` is an error. The optional second
/// argument is the value to return instead, in which `_` is the status:
///   PAGEFERRY_RETURN_IF_ERROR(Check(x));
///   PAGEFERRY_RETURN_IF_ERROR(Check(x), Annotate(_, "region 3"));
#define PAGEFERRY_RETURN_IF_ERROR(...) PAGEFERRY_STATUS_IMPL_RETURN_(__VA_ARGS__, _)

/// Assigns the value of the StatusOr `expr` to `lhs` (which may declare a variable), or returns its
/// status. The optional third argument is as above. Not for use as a single statement of an `if`.
///   PAGEFERRY_ASSIGN_OR_RETURN(const Epoch epoch, table.Claim(cell));
#define PAGEFERRY_ASSIGN_OR_RETURN(lhs, ...)                                                   \
  PAGEFERRY_STATUS_IMPL_ASSIGN_(PAGEFERRY_STATUS_IMPL_CONCAT_(pageferry_status_or_, __LINE__), \
                                lhs, __VA_ARGS__, _)

// Implementation details of the two macros.
#define PAGEFERRY_STATUS_IMPL_RETURN_(expr, action, ...)                                 \
  for (::absl::Status _ = (expr); !_.ok();) /* NOLINT: a loop leaves no dangling else */ \
  return action
#define PAGEFERRY_STATUS_IMPL_CONCAT_INNER_(a, b) a##b
#define PAGEFERRY_STATUS_IMPL_CONCAT_(a, b) PAGEFERRY_STATUS_IMPL_CONCAT_INNER_(a, b)
#define PAGEFERRY_STATUS_IMPL_ASSIGN_(temp, lhs, expr, action, ...) \
  auto temp = (expr);                                               \
  if (!temp.ok()) {                                                 \
    [[maybe_unused]] ::absl::Status _ = std::move(temp).status();   \
    return action;                                                  \
  }                                                                 \
  lhs = *std::move(temp)
