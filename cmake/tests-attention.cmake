quire_test(attention_conformance_test DEPS kernels)
quire_test(attention_exact_test DEPS kernels TIMEOUT 300)
quire_test(attention_cases_test DEPS kernels)
quire_test(ops_test DEPS kernels)
