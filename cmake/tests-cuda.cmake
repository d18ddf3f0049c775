quire_test(device_test DEPS base)
# Exit status 77: there is no device here. ctest then reports the test as skipped, not as passed.
if(TARGET kernels_cuda)
  quire_test(cuda_copy_pages_test DEPS kernels kernels_cuda base)
  set_tests_properties(cuda_copy_pages_test PROPERTIES SKIP_RETURN_CODE 77)
endif()
