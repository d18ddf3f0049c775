// server/kserve/kserve_refused.cc -- the calls of KServe that need what this server does not have.
#include "server/grpc/call.h"
#include "server/kserve/kserve_service.h"

namespace quire {
namespace {

constexpr const char* kOneModel =
    "models are neither loaded nor unloaded here; start another server for another model";
constexpr const char* kNoSharedMemory = "shared memory is not served; send tensors in the message";
constexpr const char* kNoSettings =
    "settings of traces and logs are not served; see the options trace_file and log_level";

}  // namespace

KserveService::Unary* KserveService::RepositoryModelLoad(
    Context*, const ::inference::RepositoryModelLoadRequest*,
    ::inference::RepositoryModelLoadResponse*) {
  return Unimplemented(kOneModel);
}

KserveService::Unary* KserveService::RepositoryModelUnload(
    Context*, const ::inference::RepositoryModelUnloadRequest*,
    ::inference::RepositoryModelUnloadResponse*) {
  return Unimplemented(kOneModel);
}

KserveService::Unary* KserveService::SystemSharedMemoryStatus(
    Context*, const ::inference::SystemSharedMemoryStatusRequest*,
    ::inference::SystemSharedMemoryStatusResponse*) {
  return Unimplemented(kNoSharedMemory);
}

KserveService::Unary* KserveService::SystemSharedMemoryRegister(
    Context*, const ::inference::SystemSharedMemoryRegisterRequest*,
    ::inference::SystemSharedMemoryRegisterResponse*) {
  return Unimplemented(kNoSharedMemory);
}

KserveService::Unary* KserveService::SystemSharedMemoryUnregister(
    Context*, const ::inference::SystemSharedMemoryUnregisterRequest*,
    ::inference::SystemSharedMemoryUnregisterResponse*) {
  return Unimplemented(kNoSharedMemory);
}

KserveService::Unary* KserveService::CudaSharedMemoryStatus(
    Context*, const ::inference::CudaSharedMemoryStatusRequest*,
    ::inference::CudaSharedMemoryStatusResponse*) {
  return Unimplemented(kNoSharedMemory);
}

KserveService::Unary* KserveService::CudaSharedMemoryRegister(
    Context*, const ::inference::CudaSharedMemoryRegisterRequest*,
    ::inference::CudaSharedMemoryRegisterResponse*) {
  return Unimplemented(kNoSharedMemory);
}

KserveService::Unary* KserveService::CudaSharedMemoryUnregister(
    Context*, const ::inference::CudaSharedMemoryUnregisterRequest*,
    ::inference::CudaSharedMemoryUnregisterResponse*) {
  return Unimplemented(kNoSharedMemory);
}

KserveService::Unary* KserveService::TraceSetting(Context*, const ::inference::TraceSettingRequest*,
                                                  ::inference::TraceSettingResponse*) {
  return Unimplemented(kNoSettings);
}

KserveService::Unary* KserveService::LogSettings(Context*, const ::inference::LogSettingsRequest*,
                                                 ::inference::LogSettingsResponse*) {
  return Unimplemented(kNoSettings);
}

}  // namespace quire
