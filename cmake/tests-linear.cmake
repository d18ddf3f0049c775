quire_test(dequant_test DEPS kernels)
quire_test(linear_test DEPS kernels)
quire_test(linear_bf16_test DEPS kernels TIMEOUT 300)
quire_test(linear_int8_test DEPS kernels)
