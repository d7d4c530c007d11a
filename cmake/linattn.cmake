include(GoogleTest)

# Highway compiles each kernel once a target and chooses at run time. What is left of x86-64: AVX-512 (AVX3), AVX2,
# and scalar code for older machines (Highway 1.0.3 has no SSE2 target); of ARM: NEON, as SVE's vectors fit no array.
set(LINATTN_HWY_DISABLED "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL)")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(LINATTN_HWY_DISABLED "HWY_DISABLED_TARGETS=(HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128)")
endif()

# linattn_layer(NAME DEPS ...): the library of src/NAME, its sources found by glob, and the test program
# NAME_test from the *_test.cc beside them.
function(linattn_layer name)
  cmake_parse_arguments(arg "" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS src/${name}/*.cc)
  list(FILTER sources EXCLUDE REGEX "(_test|/main)\\.cc$")
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PUBLIC ${arg_DEPS})
  target_compile_definitions(${name} PUBLIC ${LINATTN_HWY_DISABLED} LINATTN_VERSION="${PROJECT_VERSION}")
  set_target_properties(${name} PROPERTIES OUTPUT_NAME linattn_${name})
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS src/${name}/*_test.cc)
  if(tests)
    linattn_test(${name}_test SOURCES ${tests} DEPS ${name})
  endif()
endfunction()

function(linattn_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_DEPS})
endfunction()

function(linattn_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gmock GTest::gtest_main)
  # As the libraries are compiled, so that tests can share their precompiled headers.
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIC)
  target_compile_definitions(${name} PRIVATE LINATTN_TESTDATA="${PROJECT_SOURCE_DIR}/testdata"
    LINATTN_BIN="${CMAKE_BINARY_DIR}/bin" LINATTN_SOURCE="${PROJECT_SOURCE_DIR}")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES LABELS ${name} TIMEOUT 600
    ENVIRONMENT OMP_WAIT_POLICY=passive)  # ctest runs several at a time: spinning threads would starve each other
endfunction()

# Tests of the layers named: one parse of GoogleMock for each program, and little optimisation, which halve their compile
# time.
function(linattn_quick_tests)
  foreach(layer ${ARGN})
    target_precompile_headers(${layer}_test PRIVATE <gmock/gmock.h>)
    target_compile_options(${layer}_test PRIVATE $<$<CONFIG:Release>:-O1>)
  endforeach()
endfunction()

# Parses what is used of LibTorch's headers once for the layers named (the first is compiled with them, and lends them to
# the others) and their tests: 2 seconds a source instead of 5 to 9. Never <torch/torch.h>: even precompiled it costs 8.
function(linattn_precompile_torch first)
  target_precompile_headers(${first} PRIVATE <ATen/ATen.h> <torch/csrc/autograd/custom_function.h>
    <torch/library.h> <torch/nn/module.h> <torch/types.h> <torch/utils.h>)
  foreach(target ${first}_test ${ARGN})
    target_precompile_headers(${target} REUSE_FROM ${first})
    if(TARGET ${target}_test)
      target_precompile_headers(${target}_test REUSE_FROM ${first})
    endif()
  endforeach()
endfunction()
