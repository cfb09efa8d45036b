#pragma once

#include <functional>
#include <string>

#include "tools/pageferryctl/options.h"

namespace pageferry::ctl {

/// Where a command writes and whom it asks.
struct Terminal {
  std::function<void(const std::string&)> out;
  std::function<void(const std::string&)> err;
  /// Asks a person a question and waits for yes or no; not set where nobody is there.
  std::function<bool(const std::string&)> confirm;
};

/// Carries out `options` and answers the exit code (see failure.h). What succeeded at one of
/// several agents is printed also where another failed.
int Run(const Options& options, const Terminal& terminal);

}  // namespace pageferry::ctl
