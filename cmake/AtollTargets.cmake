# SPDX-License-Identifier: Apache-2.0
# Settings shared by every target, and one function per kind of target.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# Compiles several sources as one, so that the headers which they share are read once. Off for debug builds, in which
# single files are edited and built again.
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(unity_default OFF)
else()
  set(unity_default ON)
endif()
option(ATOLL_UNITY "Compile several sources as one" ${unity_default})
set(CMAKE_UNITY_BUILD ${ATOLL_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)
find_program(CCACHE ccache)
if(CCACHE)
  # Tests use precompiled headers, which ccache caches only with these settings.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
endif()

add_library(atoll_options INTERFACE)
target_include_directories(atoll_options INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_compile_options(atoll_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor $<$<BOOL:${ATOLL_WERROR}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # g++ 12 reports these falsely for its own std::string and std::vector<std::byte>.
  target_compile_options(atoll_options INTERFACE -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow
                         -Wno-stringop-overread)
endif()
if(ATOLL_SANITIZE)
  target_compile_options(atoll_options INTERFACE -fsanitize=${ATOLL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(atoll_options INTERFACE -fsanitize=${ATOLL_SANITIZE})
  if(ATOLL_SANITIZE MATCHES "undefined")
    # This check opens a pipe to probe memory, which fails if a test has used up the descriptors.
    target_compile_options(atoll_options INTERFACE -fno-sanitize=vptr)
  endif()
endif()

# atoll_layer(core DEPENDS ...): one folder, one object library; libatoll is made of them. Their symbols are visible and
# libatoll's version script decides what it exports; calls inside the library stay direct all the same.
function(atoll_layer name)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  add_library(atoll_${name} OBJECT ${sources})
  set_target_properties(atoll_${name} PROPERTIES CXX_VISIBILITY_PRESET default)
  target_compile_options(atoll_${name} PRIVATE -fno-semantic-interposition)
  target_link_libraries(atoll_${name} PUBLIC atoll_options ${ARG_DEPENDS})
endfunction()
