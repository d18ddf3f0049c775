quire_test(logits_test DEPS kernels)
quire_test(cpu_topology_test DEPS base)
quire_test(row_maker_test DEPS kernels)
