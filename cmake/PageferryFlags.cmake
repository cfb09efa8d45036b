# Compiler and linker flags as interface targets; nothing here touches global flags.
#
#   pageferry::codegen    optimisation, debug information, hardening (everything that we compile)
#   pageferry::warnings   warnings as errors (hand-written code only)
#   pageferry::sanitize   PAGEFERRY_SANITIZE (hand-written code only, and links)
#   pageferry::ours       all three: what hand-written targets link

# The optimisation level comes from pageferry::codegen, so that every lane compiles generated
# code with one and the same command line and ccache shares the result.
foreach(config IN ITEMS DEBUG RELEASE RELWITHDEBINFO MINSIZEREL)
  set(CMAKE_CXX_FLAGS_${config} "")
endforeach()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

add_library(pageferry_codegen INTERFACE)
add_library(pageferry::codegen ALIAS pageferry_codegen)
target_compile_options(
  pageferry_codegen
  INTERFACE -fPIE -fstack-protector-strong -fno-omit-frame-pointer
            $<$<CONFIG:Release>:-O2;-g1;-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2;-DNDEBUG>
            $<$<NOT:$<CONFIG:Release>>:-O1;-g1;-D_GLIBCXX_ASSERTIONS>
            # clang 18 and later mangle some templates unlike g++ 12, which built Debian's Abseil.
            $<$<CXX_COMPILER_ID:Clang>:-fclang-abi-compat=17>)
# --as-needed keeps pageferry-bootstrap free of libraries that it only sees through others.
# Not under TSan, where our own definitions of Abseil's locks would make its library look unneeded.
target_link_options(pageferry_codegen INTERFACE -pie -Wl,-z,relro,-z,now,-z,noexecstack)
if(NOT PAGEFERRY_SANITIZE STREQUAL "thread")
  target_link_options(pageferry_codegen INTERFACE -Wl,--as-needed)
endif()
# Whichever is quick and there. mold 1.10 fails an assertion on some of clang's objects beside those
# of g++ ("sym.file"), so clang gets its own linker.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  find_program(PAGEFERRY_LINKER NAMES lld-19 ld.lld-19)
  set(flag -fuse-ld=lld)
else()
  find_program(PAGEFERRY_LINKER NAMES mold)
  set(flag -fuse-ld=mold)
endif()
if(PAGEFERRY_LINKER)
  target_link_options(pageferry_codegen INTERFACE ${flag})
endif()

add_library(pageferry_warnings INTERFACE)
add_library(pageferry::warnings ALIAS pageferry_warnings)
target_compile_options(
  pageferry_warnings
  INTERFACE -Wall
            -Wextra
            -Wpedantic
            -Wshadow
            -Wnon-virtual-dtor
            -Woverloaded-virtual
            -Wimplicit-fallthrough
            -Wswitch-enum
            -Wno-unused-parameter
            # Designated initialisers that leave out defaulted members are the house style.
            -Wno-missing-field-initializers
            $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety;-Wextra-semi>
            -Werror)

add_library(pageferry_sanitize INTERFACE)
add_library(pageferry::sanitize ALIAS pageferry_sanitize)
if(PAGEFERRY_SANITIZE)
  target_compile_options(pageferry_sanitize INTERFACE -fsanitize=${PAGEFERRY_SANITIZE}
                                                      -fno-sanitize-recover=all)
  target_link_options(pageferry_sanitize INTERFACE -fsanitize=${PAGEFERRY_SANITIZE})
  find_program(PAGEFERRY_SYMBOLIZER NAMES llvm-symbolizer-19 llvm-symbolizer)
endif()

add_library(pageferry_ours INTERFACE)
add_library(pageferry::ours ALIAS pageferry_ours)
target_link_libraries(pageferry_ours INTERFACE pageferry::codegen pageferry::warnings
                                               pageferry::sanitize)

# ccache through env, so that a bare `ninja` has the same settings as ./dev. The build folder's
# name must not reach the hash, and precompiled headers need the two sloppiness values.
find_program(PAGEFERRY_CCACHE ccache)
if(PAGEFERRY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${PAGEFERRY_CCACHE})
endif()
