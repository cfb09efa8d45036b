#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace pageferry {

/// The text of `--version`: the program with its release and commit, then one line for each library
/// that it runs with: gRPC, Protobuf, Abseil, prometheus-cpp, spdlog. `more` adds others,
/// such as {"ucx", "1.13.1"}, where they are linked.
std::string VersionText(absl::string_view program,
                        const std::vector<std::pair<std::string, std::string>>& more = {});

}  // namespace pageferry
