// server/grpc/reflection_service.cc -- see reflection_service.h.
#include "server/grpc/reflection_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <set>

namespace quire {
namespace {

namespace refl = ::grpc::reflection::v1;
using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

void SetError(grpc::StatusCode code, const std::string& message,
              refl::ServerReflectionResponse& response) {
  response.mutable_error_response()->set_error_code(code);
  response.mutable_error_response()->set_error_message(message);
}

// The file and all that it imports, each once, the file itself first.
void AddFile(const FileDescriptor& file, std::set<std::string>& seen,
             refl::FileDescriptorResponse& out) {
  if (!seen.insert(file.name()).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  proto.SerializeToString(out.add_file_descriptor_proto());
  for (int i = 0; i < file.dependency_count(); ++i) AddFile(*file.dependency(i), seen, out);
}

void AnswerFile(const FileDescriptor* file, const std::string& asked,
                refl::ServerReflectionResponse& response) {
  if (file == nullptr) {
    return SetError(grpc::StatusCode::NOT_FOUND, asked + " is not known here", response);
  }
  std::set<std::string> seen;
  AddFile(*file, seen, *response.mutable_file_descriptor_response());
}

void Answer(const refl::ServerReflectionRequest& request, const std::vector<std::string>& services,
            refl::ServerReflectionResponse& response) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case refl::ServerReflectionRequest::kFileByFilename:
      return AnswerFile(pool.FindFileByName(request.file_by_filename()), request.file_by_filename(),
                        response);
    case refl::ServerReflectionRequest::kFileContainingSymbol:
      return AnswerFile(pool.FindFileContainingSymbol(request.file_containing_symbol()),
                        request.file_containing_symbol(), response);
    case refl::ServerReflectionRequest::kFileContainingExtension: {
      const refl::ExtensionRequest& asked = request.file_containing_extension();
      const Descriptor* const type = pool.FindMessageTypeByName(asked.containing_type());
      const FieldDescriptor* const field =
          type == nullptr ? nullptr : pool.FindExtensionByNumber(type, asked.extension_number());
      return AnswerFile(field == nullptr ? nullptr : field->file(),
                        "that extension of " + asked.containing_type(), response);
    }
    case refl::ServerReflectionRequest::kAllExtensionNumbersOfType: {
      const std::string& name = request.all_extension_numbers_of_type();
      const Descriptor* const type = pool.FindMessageTypeByName(name);
      if (type == nullptr) {
        return SetError(grpc::StatusCode::NOT_FOUND, name + " is not known here", response);
      }
      std::vector<const FieldDescriptor*> extensions;
      pool.FindAllExtensions(type, &extensions);
      refl::ExtensionNumberResponse& out = *response.mutable_all_extension_numbers_response();
      out.set_base_type_name(name);
      for (const FieldDescriptor* e : extensions) out.add_extension_number(e->number());
      return;
    }
    case refl::ServerReflectionRequest::kListServices:
      for (const std::string& name : services) {
        response.mutable_list_services_response()->add_service()->set_name(name);
      }
      return;
    case refl::ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      break;
  }
  SetError(grpc::StatusCode::INVALID_ARGUMENT, "message_request is not set", response);
}

// One question, one answer, until the client has no more. gRPC runs one reaction at a time here,
// since there is one operation in flight at any time.
class Reactor final : public grpc::ServerBidiReactor<refl::ServerReflectionRequest,
                                                     refl::ServerReflectionResponse> {
 public:
  explicit Reactor(const std::vector<std::string>& services) : services_(services) {
    StartRead(&request_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    response_.Clear();
    Answer(request_, services_, response_);
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  const std::vector<std::string>& services_;
  refl::ServerReflectionRequest request_;
  refl::ServerReflectionResponse response_;
};

}  // namespace

grpc::ServerBidiReactor<refl::ServerReflectionRequest, refl::ServerReflectionResponse>*
ReflectionService::ServerReflectionInfo(grpc::CallbackServerContext*) {
  return new Reactor(services_);
}

}  // namespace quire
