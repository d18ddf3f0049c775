quire_test(workloads_test DEPS bench)
