# Tests of tokenizer/.
quire_test(tokenizer_reference_test DEPS tokenizer)
quire_test(chat_template_test DEPS tokenizer)
# The Python that has jinja2 is the system's, whatever comes first in PATH; it is started often.
set_property(TEST chat_template_test APPEND PROPERTY
  ENVIRONMENT_MODIFICATION "PATH=path_list_prepend:/usr/bin")
quire_test(tokenizer_gguf_test DEPS tokenizer)
quire_test(tokenizer_cases_test DEPS tokenizer)
quire_test(tokenizer_hostile_test DEPS tokenizer)
quire_test(tokenizer_patterns_test DEPS tokenizer)
