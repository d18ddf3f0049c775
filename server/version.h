// server/version.h -- the project's version, as CMake has it.
#pragma once

namespace quire {

const char* Version();

}  // namespace quire
