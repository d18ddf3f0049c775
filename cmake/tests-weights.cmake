# Checkpoints: files, configuration, rope.
foreach(name gguf_test safetensors_test rope_config_test model_config_test gemma3_config_test
             checkpoint_test weights_fuzz_test)
  quire_test(${name} DEPS models)
  target_link_libraries(${name} PRIVATE GTest::gmock)
endforeach()
