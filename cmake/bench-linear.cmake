# Kernel benches link no more than they measure, not the whole of bench/.
add_executable(linear_bench ${CMAKE_SOURCE_DIR}/bench/linear_bench.cc
               ${CMAKE_SOURCE_DIR}/bench/flags.cc ${CMAKE_SOURCE_DIR}/bench/statistics.cc)
target_compile_options(linear_bench PRIVATE ${QUIRE_WARNINGS})
target_link_libraries(linear_bench PRIVATE kernels)
