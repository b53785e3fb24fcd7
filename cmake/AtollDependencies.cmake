# SPDX-License-Identifier: Apache-2.0
# External libraries: Debian's packages, or those under ATOLL_DEPS_DIR.

if(ATOLL_DEPS_DIR)
  list(PREPEND CMAKE_PREFIX_PATH ${ATOLL_DEPS_DIR} ${ATOLL_DEPS_DIR}/usr)
  if(NOT CMAKE_LIBRARY_ARCHITECTURE) # the compiler is not Debian's, but the prefix may hold lib/x86_64-linux-gnu
    set(CMAKE_LIBRARY_ARCHITECTURE ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu)
  endif()
endif()
find_package(Threads REQUIRED)
find_package(OpenSSL 3.0 COMPONENTS Crypto SSL)
find_package(spdlog QUIET) # which requires fmt
find_package(nlohmann_json QUIET)
# Control messages: FlatBuffers as headers, and its compiler of the same version.
find_path(FLATBUFFERS_INCLUDE_DIR flatbuffers/flatbuffers.h)
find_program(FLATBUFFERS_COMPILER flatc)
# Checksums: xxHash as a header.
find_path(XXHASH_INCLUDE_DIR xxhash.h)
# Packed tensors: zstd is linked into libatoll, so that the wheel needs no further library.
find_path(ZSTD_INCLUDE_DIR zstd.h)
find_library(ZSTD_LIBRARY NAMES libzstd.a zstd)
# Pictures: libjpeg-turbo, linked in for the same reason.
find_path(ATOLL_JPEG_INCLUDE jpeglib.h)
find_path(ATOLL_JPEG_CONFIG jconfig.h)
find_library(ATOLL_JPEG_LIBRARY NAMES libjpeg.a jpeg)
# The static archive is preferred: programs that use Atoll then need no libseccomp.so.
find_path(ATOLL_SECCOMP_INCLUDE seccomp.h)
find_library(ATOLL_SECCOMP_LIBRARY NAMES libseccomp.a seccomp)

set(missing "")
set(packages "")
foreach(need OpenSSL_FOUND:libssl-dev spdlog_FOUND:libspdlog-dev spdlog_FOUND:libfmt-dev nlohmann_json_FOUND:nlohmann-json3-dev
        FLATBUFFERS_INCLUDE_DIR:libflatbuffers-dev FLATBUFFERS_COMPILER:flatbuffers-compiler XXHASH_INCLUDE_DIR:libxxhash-dev
        ZSTD_INCLUDE_DIR:libzstd-dev ZSTD_LIBRARY:libzstd-dev ATOLL_JPEG_INCLUDE:libjpeg62-turbo-dev
        ATOLL_JPEG_CONFIG:libjpeg62-turbo-dev ATOLL_JPEG_LIBRARY:libjpeg62-turbo-dev ATOLL_SECCOMP_INCLUDE:libseccomp-dev
        ATOLL_SECCOMP_LIBRARY:libseccomp-dev)
  string(REPLACE ":" ";" need ${need})
  list(GET need 0 found)
  list(GET need 1 package)
  if(NOT ${found})
    list(APPEND missing ${found})
    list(APPEND packages ${package})
  endif()
endforeach()
if(missing)
  list(REMOVE_DUPLICATES missing)
  list(REMOVE_DUPLICATES packages)
  list(JOIN missing ", " missing)
  list(JOIN packages " " packages)
  message(FATAL_ERROR "Missing: ${missing}. Install Debian's ${packages}, or set ATOLL_DEPS_DIR to a prefix that holds them")
endif()

# spdlog and fmt as headers only: the wheel must not need Debian's libspdlog.so and libfmt.so.
add_library(atoll_spdlog INTERFACE)
add_library(atoll::spdlog ALIAS atoll_spdlog)
get_target_property(spdlog_includes spdlog::spdlog_header_only INTERFACE_INCLUDE_DIRECTORIES)
get_target_property(spdlog_definitions spdlog::spdlog_header_only INTERFACE_COMPILE_DEFINITIONS)
target_include_directories(atoll_spdlog SYSTEM INTERFACE ${spdlog_includes})
target_link_libraries(atoll_spdlog INTERFACE Threads::Threads)
if(spdlog_definitions MATCHES SPDLOG_FMT_EXTERNAL)
  find_package(fmt REQUIRED)
  target_compile_definitions(atoll_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
  target_link_libraries(atoll_spdlog INTERFACE fmt::fmt-header-only)
endif()

add_library(atoll_wire_libraries INTERFACE)
add_library(atoll::wire_libraries ALIAS atoll_wire_libraries)
target_include_directories(atoll_wire_libraries SYSTEM INTERFACE ${FLATBUFFERS_INCLUDE_DIR} ${XXHASH_INCLUDE_DIR} ${ZSTD_INCLUDE_DIR}
                           ${ATOLL_JPEG_INCLUDE} ${ATOLL_JPEG_CONFIG})
target_link_libraries(atoll_wire_libraries INTERFACE ${ZSTD_LIBRARY} ${ATOLL_JPEG_LIBRARY})
add_library(atoll_seccomp INTERFACE)
add_library(atoll::seccomp ALIAS atoll_seccomp)
target_include_directories(atoll_seccomp SYSTEM INTERFACE ${ATOLL_SECCOMP_INCLUDE})
target_link_libraries(atoll_seccomp INTERFACE ${ATOLL_SECCOMP_LIBRARY})
