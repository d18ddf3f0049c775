add_executable(draft_bench ${CMAKE_SOURCE_DIR}/bench/draft_bench.cc)
target_compile_options(draft_bench PRIVATE ${QUIRE_WARNINGS})
target_link_libraries(draft_bench PRIVATE scheduler)
