// server/grpc/other_services.cc -- see other_services.h.
#include "server/grpc/other_services.h"

#include <utility>

#include "server/grpc/tokenizer_archive.h"
#include "server/kserve/kserve_service.h"
#include "server/openengine/oe_control.h"
#include "server/openengine/oe_inference.h"
#include "server/vllm/vllm_service.h"

namespace quire {

struct OtherServices::Services {
  explicit Services(Serving s) : serving(std::move(s)), tokenizer(serving.door.model()) {}

  const Serving serving;
  TokenizerArchive tokenizer;
  VllmService vllm{serving, tokenizer};
  OeInference inference{serving};
  OeControl control{serving};
  KserveService kserve{serving};
};

OtherServices::OtherServices(Serving serving)
    : services_(std::make_unique<Services>(std::move(serving))) {}
OtherServices::~OtherServices() = default;

void OtherServices::Register(grpc::ServerBuilder& builder) {
  builder.RegisterService(&services_->vllm);
  builder.RegisterService(&services_->inference);
  builder.RegisterService(&services_->control);
  builder.RegisterService(&services_->kserve);
}

std::vector<std::string> OtherServices::names() const {
  return {"vllm.grpc.engine.VllmEngine", "openengine.v1.Inference", "openengine.v1.Control",
          "inference.GRPCInferenceService"};
}

}  // namespace quire
