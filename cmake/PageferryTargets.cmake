# One function per kind of target. Sources are listed, never globbed; includes start at the
# repository's root; every library `x` is the target pageferry_x with the alias pageferry::x.
include_guard()

# All programs that are installed: what `./dev demo` builds.
add_custom_target(pageferry_programs)

# What each hand-written target has in common.
function(_pageferry_common target scope)
  target_include_directories(${target} ${scope} ${PROJECT_SOURCE_DIR})
  target_compile_features(${target} ${scope} cxx_std_20)
endfunction()

# pageferry_cc_library(NAME name [HDRS h...] [SRCS cc...] [DEPS target...] [PRIVATE_DEPS target...])
# Without SRCS it is a header-only library. DEPS are public, PRIVATE_DEPS are needed by the sources
# alone.
function(pageferry_cc_library)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "HDRS;SRCS;DEPS;PRIVATE_DEPS")
  _pageferry_check_arguments(pageferry_cc_library)
  set(target pageferry_${arg_NAME})
  if(arg_SRCS)
    add_library(${target} STATIC ${arg_SRCS} ${arg_HDRS})
    _pageferry_common(${target} PUBLIC)
    target_link_libraries(${target} PUBLIC ${arg_DEPS} PRIVATE ${arg_PRIVATE_DEPS} pageferry::ours)
  else()
    add_library(${target} INTERFACE ${arg_HDRS})
    _pageferry_common(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${arg_DEPS} ${arg_PRIVATE_DEPS})
  endif()
  add_library(pageferry::${arg_NAME} ALIAS ${target})
endfunction()

# pageferry_cc_binary(NAME name [OUTPUT file] SRCS cc... [DEPS target...] [NO_INSTALL])
# The program build/<preset>/bin/<file>, installed to bin/. OUTPUT is pageferry-<name> if not given.
function(pageferry_cc_binary)
  cmake_parse_arguments(PARSE_ARGV 0 arg "NO_INSTALL" "NAME;OUTPUT" "SRCS;DEPS")
  _pageferry_check_arguments(pageferry_cc_binary)
  if(NOT arg_OUTPUT)
    set(arg_OUTPUT pageferry-${arg_NAME})
  endif()
  set(target pageferry_${arg_NAME}_binary)
  add_executable(${target} ${arg_SRCS})
  _pageferry_common(${target} PRIVATE)
  target_link_libraries(${target} PRIVATE ${arg_DEPS} pageferry::ours)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${arg_OUTPUT})
  _pageferry_program(${target})
  if(NOT arg_NO_INSTALL)
    add_dependencies(pageferry_programs ${target})
    install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
  endif()
endfunction()

# pageferry_cc_test(NAME name SRCS cc... [DEPS target...] LABELS label... [TIMEOUT seconds]
#                   [NO_MAIN] [RUN_SERIAL] [ARGS a...] [ENVIRONMENT A=b...])
# One gtest program and one ctest entry for it (a process per case costs more than it tells). GTest,
# gmock and their main() are linked, but for NO_MAIN. TIMEOUT is 60 s, and four times as much under
# a sanitizer. LABELS: unit, service, ucx, integration, fuzz, cuda.
function(pageferry_cc_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "NO_MAIN;RUN_SERIAL" "NAME;TIMEOUT"
                        "SRCS;DEPS;LABELS;ARGS;ENVIRONMENT")
  _pageferry_check_arguments(pageferry_cc_test)
  set(target pageferry_${arg_NAME})
  add_executable(${target} ${arg_SRCS})
  _pageferry_common(${target} PRIVATE)
  target_link_libraries(${target} PRIVATE ${arg_DEPS} GTest::gtest GTest::gmock pageferry::ours)
  if(NOT arg_NO_MAIN)
    target_link_libraries(${target} PRIVATE GTest::gmock_main)
  endif()
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${arg_NAME} RUNTIME_OUTPUT_DIRECTORY
                                             ${PROJECT_BINARY_DIR}/bin/tests)
  _pageferry_program(${target})
  target_precompile_headers(${target} REUSE_FROM pageferry_test_headers)
  target_compile_options(
    ${target} PRIVATE $<TARGET_PROPERTY:pageferry_test_headers,INTERFACE_COMPILE_OPTIONS>)
  add_test(NAME ${arg_NAME} COMMAND ${target} ${arg_ARGS})
  _pageferry_test_properties()
endfunction()

# pageferry_script_test(NAME name COMMAND program arg... LABELS label... [TIMEOUT seconds]
#                       [RUN_SERIAL] [ENVIRONMENT A=b...])
# Any other program as a ctest entry. Exit 77 means skipped: it must print the reason. The folder of
# our binaries is in PAGEFERRY_BIN, the repository's root in PAGEFERRY_ROOT.
function(pageferry_script_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "RUN_SERIAL" "NAME;TIMEOUT" "COMMAND;LABELS;ENVIRONMENT")
  _pageferry_check_arguments(pageferry_script_test)
  add_test(NAME ${arg_NAME} COMMAND ${arg_COMMAND} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  _pageferry_test_properties()
endfunction()

# pageferry_python_test(NAME name PATHS file... LABELS label... [TIMEOUT seconds] [RUN_SERIAL]
#                       [ENVIRONMENT A=b...])
# pytest over PATHS (from the repository's root) with the Python of .venv, which `./dev setup` makes.
function(pageferry_python_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "RUN_SERIAL" "NAME;TIMEOUT" "PATHS;LABELS;ENVIRONMENT")
  _pageferry_check_arguments(pageferry_python_test)
  add_test(NAME ${arg_NAME} COMMAND ${PROJECT_SOURCE_DIR}/.venv/bin/python -m pytest -q ${arg_PATHS}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  _pageferry_test_properties()
endfunction()

function(_pageferry_check_arguments function)
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "${function}(${arg_NAME}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_NAME)
    message(FATAL_ERROR "${function}: NAME is missing")
  endif()
  if(function MATCHES "_test$" AND NOT arg_LABELS)
    message(FATAL_ERROR "${function}(${arg_NAME}): LABELS is missing")
  endif()
endfunction()

# gtest, gmock and what nearly every test includes, precompiled once for all tests: 2 of the 3 s that
# a small test costs. gRPC's headers are not worth it: 2 of 6 s (g++; 2 of 13 under asan) for a
# 268 MB file that each change of a proto would make anew.
function(pageferry_test_headers)
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/generated/test_headers.cc CONTENT "")
  add_library(pageferry_test_headers OBJECT ${PROJECT_BINARY_DIR}/generated/test_headers.cc)
  target_link_libraries(pageferry_test_headers PRIVATE GTest::gtest GTest::gmock absl::statusor
                                                       pageferry::ours)
  target_precompile_headers(
    pageferry_test_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h> <map> <memory> <string> <vector>
    <absl/status/statusor.h>)
  # -pthread: protobuf's target brings it to some tests, and all must agree with the headers. The
  # rest is what ccache asks for before it caches anything that has to do with precompiled headers.
  target_compile_options(
    pageferry_test_headers
    PUBLIC -pthread $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
           "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
endfunction()

# What each of our programs needs besides its sources; see tests/tsan.
function(_pageferry_program target)
  if(TARGET pageferry_tsan_shims)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:pageferry_tsan_shims>)
    target_link_libraries(${target} PRIVATE absl::synchronization ${CMAKE_DL_LIBS})
  endif()
endfunction()

# Reads arg_* of the calling function.
function(_pageferry_test_properties)
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  if(PAGEFERRY_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 4")
  endif()
  set(ucx "")
  if(PAGEFERRY_SANITIZE)
    # UCX patches mmap() and its kin as it is loaded, which the sanitizers have replaced.
    set(ucx ";UCX_MEM_EVENTS=n")
  endif()
  set(sanitizers "")
  if(PAGEFERRY_SYMBOLIZER)
    set(sanitizers ":external_symbolizer_path=${PAGEFERRY_SYMBOLIZER}")
  endif()
  set_tests_properties(
    ${arg_NAME}
    PROPERTIES
      LABELS "${arg_LABELS}"
      TIMEOUT ${arg_TIMEOUT}
      SKIP_RETURN_CODE 77
      RUN_SERIAL ${arg_RUN_SERIAL}
      ENVIRONMENT
      "PAGEFERRY_ROOT=${PROJECT_SOURCE_DIR};PAGEFERRY_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};\
ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1${sanitizers};\
UBSAN_OPTIONS=print_stacktrace=1${sanitizers};\
TSAN_OPTIONS=ignore_noninstrumented_modules=1:second_deadlock_stack=1${sanitizers}${ucx};\
${arg_ENVIRONMENT}")
endfunction()
