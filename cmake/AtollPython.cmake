# SPDX-License-Identifier: Apache-2.0
# The Python that runs the build, its torch, and the package's record of the build.

find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "from importlib.metadata import version; print(version('torch').partition('+')[0])"
  OUTPUT_VARIABLE ATOLL_TORCH_VERSION OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "The PyTorch glue needs torch in the Python that builds (${Python_EXECUTABLE}): pip install torch==2.13.0, "
                      "or configure with -DATOLL_PYTORCH=OFF")
endif()
message(STATUS "PyTorch glue: Python ${Python_VERSION}, torch ${ATOLL_TORCH_VERSION}")

configure_file(${PROJECT_SOURCE_DIR}/cmake/_build_info.py.in ${PROJECT_BINARY_DIR}/python/_build_info.py @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/python/_build_info.py DESTINATION atoll COMPONENT python)
