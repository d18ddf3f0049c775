# Tests of tokenizer/.
quire_test(tokenizer_reference_test DEPS tokenizer)
