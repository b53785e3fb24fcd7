# SPDX-License-Identifier: Apache-2.0
# Libraries from outside: Debian's packages, or those under ATOLL_DEPS_DIR.

if(ATOLL_DEPS_DIR)
  list(PREPEND CMAKE_PREFIX_PATH ${ATOLL_DEPS_DIR} ${ATOLL_DEPS_DIR}/usr)
endif()
find_package(Threads REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto SSL)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)

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
