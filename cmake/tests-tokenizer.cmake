# Tests of tokenizer/.
quire_test(tokenizer_reference_test DEPS tokenizer)
quire_test(chat_template_test DEPS tokenizer)
quire_test(tokenizer_gguf_test DEPS tokenizer)
quire_test(tokenizer_cases_test DEPS tokenizer)
quire_test(tokenizer_hostile_test DEPS tokenizer)
quire_test(tokenizer_patterns_test DEPS tokenizer)
