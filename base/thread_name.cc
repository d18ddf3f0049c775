#include "base/thread_name.h"

#include <pthread.h>

#include <cstring>

#include "base/status.h"

namespace quire {

void SetThreadName(const char* name) {
  CHECK(std::strlen(name) <= 15, "name={}", name);
  ::pthread_setname_np(::pthread_self(), name);
}

}  // namespace quire
