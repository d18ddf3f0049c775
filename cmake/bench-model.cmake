# Benches of a whole model in one process.
foreach(name context_bench scaling_bench)
  add_executable(${name} ${CMAKE_SOURCE_DIR}/bench/${name}.cc)
  target_compile_options(${name} PRIVATE ${QUIRE_WARNINGS})
  target_link_libraries(${name} PRIVATE bench)
endforeach()
