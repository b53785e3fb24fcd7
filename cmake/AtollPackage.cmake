# SPDX-License-Identifier: Apache-2.0
# Installs what a C++ client needs as component "devel": cmake --install BUILD --component devel --prefix WHERE

set(package lib/cmake/Atoll)
install(TARGETS atoll LIBRARY DESTINATION lib COMPONENT devel)
install(TARGETS atoll_aten ARCHIVE DESTINATION lib COMPONENT devel)
foreach(layer core infer json plan transport)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/src/atoll/${layer} DESTINATION include/atoll COMPONENT devel
          FILES_MATCHING PATTERN "*.h"
          PATTERN infer/operators EXCLUDE PATTERN serve EXCLUDE PATTERN worker EXCLUDE PATTERN safety EXCLUDE)
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/src/atoll/pytorch/aten/operator_runner.h
              ${PROJECT_SOURCE_DIR}/src/atoll/pytorch/aten/package_engine.h
        DESTINATION include/atoll/pytorch/aten COMPONENT devel)

include(CMakePackageConfigHelpers)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/AtollConfig.cmake.in ${PROJECT_BINARY_DIR}/AtollConfig.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/AtollConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/AtollConfig.cmake ${PROJECT_BINARY_DIR}/AtollConfigVersion.cmake
        DESTINATION ${package} COMPONENT devel)
