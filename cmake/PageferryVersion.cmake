# pageferry::version: "libs/common/version.h" with the release number, and GitDescribe().
#
# The number is fixed at configure time. The description is asked anew at each build, but its source
# is written only when the answer differs, so that one small file is compiled and nothing else.
include_guard()

set(_version_dir ${PROJECT_BINARY_DIR}/generated)
configure_file(${PROJECT_SOURCE_DIR}/libs/common/version.h.in
               ${_version_dir}/libs/common/version.h @ONLY)
add_custom_target(
  pageferry_git_describe
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
          -DOUTPUT=${_version_dir}/libs/common/version.cc -P
          ${PROJECT_SOURCE_DIR}/cmake/GitDescribe.cmake
  BYPRODUCTS ${_version_dir}/libs/common/version.cc
  VERBATIM)
add_library(pageferry_version STATIC ${_version_dir}/libs/common/version.cc)
add_library(pageferry::version ALIAS pageferry_version)
add_dependencies(pageferry_version pageferry_git_describe)
target_include_directories(pageferry_version PUBLIC ${_version_dir})
target_link_libraries(pageferry_version PRIVATE pageferry::ours)
