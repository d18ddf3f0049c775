// Streams of server-sent events by raw sockets: chunks, comments, clients that leave or read
// slowly. HARD-CASES N01, N04 as far as the transport goes.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/http_rig.h"

namespace quire::http_test {
namespace {

TEST(HttpStream, EachWriteIsAChunkOfItsOwn) {
  Rig rig;
  RawClient client(rig.port());
  client.Send(Get("/stream"));
  const ExchangePtr stream = rig.stream();
  stream->Write("data: 1\n\n");
  ASSERT_TRUE(client.ReceiveUntil("\r\n\r\n"));
  const std::string head = client.unread().substr(0, client.unread().find("\r\n\r\n") + 4);
  EXPECT_NE(head.find("HTTP/1.1 200 OK\r\n"), std::string::npos);
  EXPECT_NE(head.find("\r\ncontent-type: text/event-stream"), std::string::npos);
  EXPECT_NE(head.find("\r\ntransfer-encoding: chunked\r\n"), std::string::npos);
  EXPECT_NE(head.find("\r\nx-extra: 1\r\n"), std::string::npos);
  client.unread().erase(0, head.size());
  EXPECT_EQ(client.ReadChunk(), "data: 1\n\n");
  for (const char* event : {"data: 2\n\n", "data: 3\n\n"}) {
    stream->Write(event);
    EXPECT_EQ(client.ReadChunk(), event);
  }
  EXPECT_EQ(rig.num_released, 0);
  stream->End();
  EXPECT_EQ(client.ReadChunk(), "");
  EXPECT_TRUE(Eventually([&] { return rig.num_released == 1; }));
  EXPECT_EQ(rig.num_gone, 0);
  client.Send(Get("/hello"));
  EXPECT_EQ(client.Read().body, "hello");
}

TEST(HttpStream, SilenceIsFilledWithComments) {
  HttpServer::Options options;
  options.sse_keepalive_ms = 30;
  Rig rig(options);
  RawClient client(rig.port());
  client.Send(Get("/stream"));
  const ExchangePtr stream = rig.stream();
  ASSERT_TRUE(client.ReceiveUntil(": keep-alive\n\n\r\n"));  // before any event
  stream->Write("data: 1\n\n");
  ASSERT_TRUE(client.ReceiveUntil("data: 1\n\n\r\n"));
  client.unread().clear();
  ASSERT_TRUE(client.ReceiveUntil(": keep-alive\n\n\r\n"));  // between events
  // An error that comes now can't be a status any more; it is an event, and the stream ends.
  stream->Reply({.status = 500, .body = "{\"error\":1}"});
  ASSERT_TRUE(client.ReceiveUntil("data: {\"error\":1}\n\ndata: [DONE]\n\n"));
  ASSERT_TRUE(client.ReceiveUntil("\r\n0\r\n\r\n"));
}

TEST(HttpStream, N04_AClientThatLeavesIsNoticed) {
  Rig rig;
  int expected = 0;
  for (const bool wrote : {false, true}) {
    for (const bool reset : {false, true}) {
      RawClient client(rig.port());
      client.Send(Get("/stream"));
      const ExchangePtr stream = rig.stream();
      if (wrote) {
        stream->Write("data: 1\n\n");
        ASSERT_TRUE(client.ReceiveUntil("data: 1"));
      }
      if (reset) {
        client.Reset();
      } else {
        client.Close();
      }
      ++expected;
      EXPECT_TRUE(Eventually([&] { return rig.num_gone == expected; }));
      stream->Write("data: to nobody\n\n");
      stream->End();
      std::atomic<bool> told{false};
      stream->WhenGone([&] { told = true; });
      EXPECT_TRUE(Eventually([&] { return told.load(); }));
    }
  }
  EXPECT_TRUE(Eventually([&] { return rig.server().num_connections() == 0; }));
  EXPECT_EQ(rig.num_released, expected);
  rig.ExpectServes();
}

TEST(HttpStream, AnAbortedStreamNeverLooksComplete) {
  Rig rig;
  RawClient client(rig.port());
  client.Send(Get("/stream"));
  const ExchangePtr stream = rig.stream();
  stream->Write("data: 1\n\n");
  ASSERT_TRUE(client.ReceiveUntil("data: 1\n\n\r\n"));
  stream->Abort();
  while (client.Receive()) {
  }
  EXPECT_EQ(client.unread().find("0\r\n\r\n"), std::string::npos);
}

TEST(HttpStream, N01_WhatAReaderLeavesIsCountedAndItsTimeIsBounded) {
  HttpServer::Options options;
  options.write_timeout_ms = 500;
  Rig rig(options);
  RawClient client(rig.port(), /*receive_buffer=*/4096);
  client.Send(Get("/stream"));
  const ExchangePtr stream = rig.stream();
  for (int i = 0; i < 200; ++i) stream->Write("data: " + std::string(100'000, 'x') + "\n\n");
  EXPECT_TRUE(Eventually([&] { return stream->unsent_bytes() > 1'000'000; }));
  EXPECT_TRUE(Eventually([&] { return rig.num_gone == 1; }));
  rig.ExpectServes();
}

TEST(HttpStream, ShutdownCutsWhatIsOpen) {
  Rig rig;
  RawClient client(rig.port());
  client.Send(Get("/stream"));
  const ExchangePtr stream = rig.stream();
  stream->Write("data: 1\n\n");
  ASSERT_TRUE(client.ReceiveUntil("data: 1\n\n\r\n"));
  rig.server().Shutdown();
  while (client.Receive()) {
  }
  EXPECT_EQ(client.unread().find("0\r\n\r\n"), std::string::npos);
  EXPECT_EQ(rig.num_gone, 1);
  EXPECT_EQ(rig.num_released, 1);
  stream->Write("data: late\n\n");
}

}  // namespace
}  // namespace quire::http_test
