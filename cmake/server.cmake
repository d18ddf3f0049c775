# The daemon, its protos and its clients: everything that may see gRPC or a socket.
find_package(Protobuf REQUIRED)
find_package(gRPC REQUIRED CONFIG)
find_package(Boost 1.74 REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
