#pragma once

#include <string>

#include "pageferry/bootstrap/v1/bootstrap.pb.h"

namespace pageferry::ctl {

/// A table of engines, and a line on the table's version and on a service that is warming up.
/// `all_namespaces` adds a column.
std::string EnginesText(const bootstrap::v1::ListEnginesResponse& engines, bool all_namespaces);

/// A line on the engine and a table of all cells of its shape in rank order; those without a live
/// lease are shown as missing. A shape that is out of bounds (a broken service) shows live ranks
/// only.
std::string RanksText(const bootstrap::v1::GetEngineResponse& response);

}  // namespace pageferry::ctl
