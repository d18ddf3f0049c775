# Builds deploy/plan-configs/*.json into the models library: `quire plan <name>` needs no file then.
file(GLOB plan_configs CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/deploy/plan-configs/*.json)
set(rows "")
foreach(config ${plan_configs})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${config})
  get_filename_component(name ${config} NAME_WLE)
  file(READ ${config} text)
  string(APPEND rows "    {\"${name}\", R\"json(${text})json\"},\n")
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/gen/plan_configs.cc CONTENT [[
// Made by cmake/plan-configs.cmake.
#include "models/plan/shape_source.h"

namespace quire {

std::span<const BuiltInConfig> BuiltInConfigs() {
  static constexpr BuiltInConfig kRows[] = {
@rows@  };
  return kRows;
}

}  // namespace quire
]] @ONLY)
target_sources(models PRIVATE ${CMAKE_BINARY_DIR}/gen/plan_configs.cc)
