add_executable(cache_bench ${CMAKE_SOURCE_DIR}/bench/cache_bench.cc)
target_compile_options(cache_bench PRIVATE ${QUIRE_WARNINGS})
target_link_libraries(cache_bench PRIVATE paged_cache kernels)
