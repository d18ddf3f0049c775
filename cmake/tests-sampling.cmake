quire_test(sampling_params_test DEPS sampling)
quire_test(sampling_reference_test DEPS sampling)
quire_test(stop_test DEPS sampling)
quire_test(sampler_test DEPS sampling)
