#pragma once

#include <string>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"

namespace pageferry {

/// Writes what a program listens on, for those that started it: `content` as JSON and a newline, by
/// way of a temporary file beside `path`, so that a reader sees all of it or no file.
/// kFailedPrecondition: something other than a regular file stands there, or it cannot be written;
/// the message has the path and the system's error.
absl::Status WritePortFile(const std::string& path, const nlohmann::json& content);

}  // namespace pageferry
