# Code from .proto files.
include_guard()

set(PAGEFERRY_PROTO_ROOT ${PROJECT_SOURCE_DIR}/protos)
set(PAGEFERRY_PROTO_GENERATED ${PROJECT_BINARY_DIR}/protos/generated)
find_program(PAGEFERRY_GXX g++)

# What clang-tidy needs before it can read a file: all generated sources, nothing compiled.
add_custom_target(pageferry_generated_headers)

# pageferry_proto_library(NAME name PROTOS file... [DEPS name...] [GRPC])
# Makes pageferry::proto_<name> of the messages in PROTOS (paths below protos/; no gRPC), and with
# GRPC also pageferry::proto_<name>_grpc of the services in them. DEPS are names of other proto
# libraries. Headers are included as "pageferry/agent/v1/agent.pb.h", and as system headers, so that
# warnings and clang-tidy leave them alone.
function(pageferry_proto_library)
  cmake_parse_arguments(PARSE_ARGV 0 arg "GRPC" "NAME" "PROTOS;DEPS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_PROTOS)
    message(FATAL_ERROR "pageferry_proto_library(${arg_NAME}): bad arguments ${ARGV}")
  endif()
  file(MAKE_DIRECTORY ${PAGEFERRY_PROTO_GENERATED})
  set(messages "")
  set(services "")
  foreach(proto IN LISTS arg_PROTOS)
    cmake_path(REMOVE_EXTENSION proto LAST_ONLY OUTPUT_VARIABLE stem)
    set(out ${PAGEFERRY_PROTO_GENERATED}/${stem})
    set(outputs ${out}.pb.h ${out}.pb.cc)
    list(APPEND messages ${outputs})
    set(grpc_arguments "")
    if(arg_GRPC)
      set(grpc_arguments --grpc_out=${PAGEFERRY_PROTO_GENERATED}
                         --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>)
      list(APPEND services ${out}.grpc.pb.h ${out}.grpc.pb.cc)
      list(APPEND outputs ${out}.grpc.pb.h ${out}.grpc.pb.cc)
    endif()
    add_custom_command(
      OUTPUT ${outputs}
      COMMAND protobuf::protoc --proto_path=${PAGEFERRY_PROTO_ROOT}
              --cpp_out=${PAGEFERRY_PROTO_GENERATED} ${grpc_arguments}
              ${PAGEFERRY_PROTO_ROOT}/${proto}
      DEPENDS ${PAGEFERRY_PROTO_ROOT}/${proto} protobuf::protoc
      COMMENT "Generating C++ from ${proto}"
      VERBATIM)
    cmake_path(GET proto PARENT_PATH folder)
    install(FILES ${PAGEFERRY_PROTO_ROOT}/${proto}
            DESTINATION ${CMAKE_INSTALL_DATADIR}/pageferry/protos/${folder} COMPONENT protos)
  endforeach()

  # One owner for the commands, so that two libraries never run one of them at the same time.
  set(codegen pageferry_proto_${arg_NAME}_codegen)
  add_custom_target(${codegen} DEPENDS ${messages} ${services})
  add_dependencies(pageferry_generated_headers ${codegen})

  set(message_deps "")
  foreach(dep IN LISTS arg_DEPS)
    list(APPEND message_deps pageferry::proto_${dep})
  endforeach()
  _pageferry_generated_library(proto_${arg_NAME} "${messages}" protobuf::libprotobuf
                               ${message_deps})
  add_dependencies(pageferry_proto_${arg_NAME} ${codegen})
  if(arg_GRPC)
    _pageferry_generated_library(proto_${arg_NAME}_grpc "${services}" gRPC::grpc++
                                 pageferry::proto_${arg_NAME})
    if(PAGEFERRY_SANITIZE STREQUAL "thread")
      # The exception: gRPC's reactors are templates, some made only here, and they count callbacks
      # in atomics. Uninstrumented ones would hide the order of OnDone after the other reactions.
      target_link_libraries(pageferry_proto_${arg_NAME}_grpc PRIVATE pageferry::sanitize)
      set_target_properties(pageferry_proto_${arg_NAME}_grpc
                            PROPERTIES CXX_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
    endif()
    add_dependencies(pageferry_proto_${arg_NAME}_grpc ${codegen})
  endif()
endfunction()

# Generated code is compiled the same way in every lane: by g++, optimised, uninstrumented. So ccache
# compiles it once for all of them. (g++ and clang both use libstdc++ here, so the objects mix.)
function(_pageferry_generated_library name sources)
  set(target pageferry_${name})
  add_library(${target} STATIC ${sources})
  add_library(pageferry::${name} ALIAS ${target})
  target_include_directories(${target} SYSTEM PUBLIC ${PAGEFERRY_PROTO_GENERATED})
  target_link_libraries(${target} PUBLIC ${ARGN})
  target_compile_options(${target} PRIVATE -O1 -g0 -fPIE -fstack-protector-strong
                                           -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -DNDEBUG -w)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND PAGEFERRY_GXX)
    set_target_properties(
      ${target} PROPERTIES CXX_COMPILER_LAUNCHER
                           "${PROJECT_SOURCE_DIR}/cmake/with_gxx.sh;${CMAKE_CXX_COMPILER_LAUNCHER}")
  endif()
endfunction()
