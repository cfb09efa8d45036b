# cmake -DSOURCE_DIR=tree -DOUTPUT=file.cc -P GitDescribe.cmake: writes the definition of
# pageferry::GitDescribe(), and leaves the file alone when it would not change.
execute_process(
  COMMAND git -C ${SOURCE_DIR} describe --always --dirty
  OUTPUT_VARIABLE describe
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT describe MATCHES "^[A-Za-z0-9._/-]+$")
  set(describe unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#include "libs/common/version.h"

namespace pageferry {

std::string_view GitDescribe() { return "@describe@"; }

}  // namespace pageferry
]])
