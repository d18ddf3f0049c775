# CUDA kernels: target kernels_cuda, if nvcc is found. Without it the build goes on and says so.
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(WARNING "QUIRE_CUDA=ON, but nvcc was not found: CUDA kernels are not built. "
                  "Put nvcc on PATH or set CMAKE_CUDA_COMPILER.")
  return()
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu)
add_library(kernels_cuda STATIC ${cuda_sources})
# The C++ options of this directory are not nvcc's; the same rule for floats is --fmad=false. The
# standard is set here because CMake 3.25 does not know the flags of CUDA 13.
set_target_properties(kernels_cuda PROPERTIES
  CUDA_STANDARD_REQUIRED OFF
  COMPILE_OPTIONS "-std=c++20;--fmad=false;-Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off")
target_include_directories(kernels_cuda PUBLIC ${CMAKE_SOURCE_DIR})
target_compile_definitions(kernels_cuda PUBLIC QUIRE_HAVE_CUDA)
target_link_libraries(kernels_cuda PUBLIC CUDA::cudart_static)
