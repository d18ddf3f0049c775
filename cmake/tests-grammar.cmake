# Structured output.
quire_test(grammar_check_test DEPS sampling)
quire_test(grammar_compiler_test DEPS sampling tokenizer TIMEOUT 300)
quire_test(grammar_json_test DEPS sampling tokenizer TIMEOUT 300)
quire_test(grammar_matcher_test DEPS sampling tokenizer PkgConfig::PCRE2 TIMEOUT 300)
quire_test(forced_tokens_test DEPS sampling tokenizer)
# The judge is the system's Python, whatever comes first in PATH: Debian has jsonschema for it.
find_program(QUIRE_JUDGE_PYTHON NAMES python3 PATHS /usr/bin NO_DEFAULT_PATH)
target_compile_definitions(grammar_json_test PRIVATE QUIRE_TEST_PYTHON="${QUIRE_JUDGE_PYTHON}"
  QUIRE_TEST_JUDGE="${CMAKE_SOURCE_DIR}/tests/check_json_schema.py")
