// tests/client_library_secure_test.cc -- the C++ client library against daemons that want TLS, a
// client's certificate or an API key. Certificates are made by the openssl command.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "clients/cpp/generation_client.h"
#include "tests/support/server_rig.h"

namespace quire::server_test {
namespace {

// A key, and its SHA-256 as the sha256sum command has it.
constexpr const char* kKey = "a key of the C++ client library";
constexpr const char* kKeyHash = "f976ebfecf9707b5b0549c34ce0d4bd26c654ee89d4e5438ec10ad4bece25a84";

std::filesystem::path Folder() {
  static const std::filesystem::path folder = [] {
    std::filesystem::path made = std::filesystem::path(testing::TempDir()) /
                                 ("client_library_secure_test-" + std::to_string(::getpid()));
    std::filesystem::create_directories(made);
    return made;
  }();
  return folder;
}

std::string Read(const std::string& name) {
  std::ifstream file(Folder() / name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void Run(const std::string& command) {
  const std::string quiet = "cd " + Folder().string() + " && " + command + " >log 2>&1";
  ASSERT_EQ(std::system(quiet.c_str()), 0) << command << "\n" << Read("log");
}

// An authority `ca`, with a certificate of its own in <ca>.pem, signs <name>.pem for localhost.
void Issue(const std::string& ca, const std::string& name) {
  const std::string new_key = " -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes ";
  Run("test -e " + ca + ".pem || openssl req -x509 -days 2 -subj /CN=" + ca + new_key + "-keyout " +
      ca + ".key -out " + ca + ".pem");
  Run("openssl req -subj /CN=" + name + new_key + "-keyout " + name + ".key -out " + name + ".csr");
  std::ofstream(Folder() / "names") << "subjectAltName=DNS:localhost,IP:127.0.0.1\n";
  Run("openssl x509 -req -days 2 -extfile names -CAcreateserial -in " + name + ".csr -CA " + ca +
      ".pem -CAkey " + ca + ".key -out " + name + ".pem");
}

class ClientLibrarySecure : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    Issue("ca", "server");
    Issue("ca", "client");
    Issue("stranger", "impostor");
    std::ofstream(Folder() / "keys.yaml") << "- name: test\n  sha256: " << kKeyHash << "\n";
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(Folder()); }

  static RigOptions Secure() {
    RigOptions options;
    options.server.ssl_certfile = Folder() / "server.pem";
    options.server.ssl_keyfile = Folder() / "server.key";
    return options;
  }
  static RigOptions Keyed() {
    RigOptions options = Secure();
    options.server.grpc_max_connections = 100;  // a port of our own, with the same guards
    options.server.api_key_file = Folder() / "keys.yaml";
    return options;
  }
  static ConnectOptions To(Rig& rig) {
    return {.address = "127.0.0.1:" + std::to_string(rig.daemon().port()),
            .tls = true,
            .root_certificates = Read("ca.pem")};
  }

  // How each kind of call ends: a whole answer, a stream, tokens.
  static std::array<absl::StatusCode, 3> Codes(const ConnectOptions& options) {
    auto channel = Connect(options);
    EXPECT_TRUE(channel.ok()) << channel.status();
    GenerationClient client(*std::move(channel));
    const pb::GenerateRequest request = Rig::TextRequest("some text", 3);
    AnswerCollector answer;
    const absl::Status stream = client.Stream(request, [&](const pb::GenerateEvent& event) {
      answer.Take(event);
      return true;
    });
    EXPECT_EQ(stream.ok(), answer.complete());
    return {client.Generate(request).status().code(), stream.code(),
            client.Tokenize("some text").status().code()};
  }
  static void ExpectAll(const ConnectOptions& options, absl::StatusCode code) {
    for (const absl::StatusCode got : Codes(options)) EXPECT_EQ(got, code);
  }
};

TEST_F(ClientLibrarySecure, TlsAndAKey) {
  Rig rig(Keyed());
  ConnectOptions options = To(rig);
  options.api_key = kKey;
  ExpectAll(options, absl::StatusCode::kOk);
  rig.ExpectIdle();
}

TEST_F(ClientLibrarySecure, KeysThatAreNotTaken) {
  Rig rig(Keyed());
  ConnectOptions options = To(rig);
  for (const std::string& key : {std::string(), std::string("somebody else's key"),
                                 std::string(kKey) + "x", std::string(kKey).substr(1)}) {
    options.api_key = key;
    ExpectAll(options, absl::StatusCode::kUnauthenticated);
  }
  rig.ExpectIdle();
}

TEST_F(ClientLibrarySecure, KeysThatNoHeaderCanHold) {
  for (const std::string& key : {std::string(kKey) + "\n", "k\xC3\xA4se" + std::string(kKey),
                                 std::string(kKey) + std::string(1, '\0')}) {
    const absl::Status refused = Connect({.api_key = key}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(refused.message()).find(kKey), std::string::npos);
  }
}

TEST_F(ClientLibrarySecure, ServersThatAreNotTrusted) {
  Rig rig(Secure());
  Rig plain;
  ConnectOptions stranger = To(rig);
  stranger.root_certificates = Read("stranger.pem");
  ExpectAll(stranger, absl::StatusCode::kUnavailable);
  ConnectOptions well_known = To(rig);
  well_known.root_certificates.clear();
  ExpectAll(well_known, absl::StatusCode::kUnavailable);
  ExpectAll({.address = To(rig).address}, absl::StatusCode::kUnavailable);  // plaintext to TLS
  ExpectAll(To(plain), absl::StatusCode::kUnavailable);                     // and the other way
  ExpectAll(To(rig), absl::StatusCode::kOk);
  rig.ExpectIdle();
}

TEST_F(ClientLibrarySecure, CertificatesOfClients) {
  RigOptions mutual = Secure();
  mutual.server.ssl_ca_certs = Folder() / "ca.pem";
  mutual.server.ssl_cert_reqs = "required";
  Rig rig(mutual);
  ConnectOptions options = To(rig);
  ExpectAll(options, absl::StatusCode::kUnavailable);
  options.client_certificate = Read("impostor.pem");
  options.client_key = Read("impostor.key");
  ExpectAll(options, absl::StatusCode::kUnavailable);
  options.client_certificate = Read("client.pem");
  options.client_key = Read("client.key");
  ExpectAll(options, absl::StatusCode::kOk);
  rig.ExpectIdle();
}

}  // namespace
}  // namespace quire::server_test
