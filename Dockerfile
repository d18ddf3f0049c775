# docker build -t quire . && docker run -p 50051:50051 -p 8000:8000 quire
# The same steps as `make run` on a fresh Debian 12; the model is part of the image.
FROM debian:bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends make git ca-certificates && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY deploy/ deploy/
RUN deploy/install-deps.sh && deploy/fetch-model.sh && deploy/fetch-xgrammar.sh
COPY . .
RUN make build

FROM debian:bookworm-slim
COPY deploy/debian-packages-runtime.txt /tmp/
RUN apt-get update && grep -v '^#' /tmp/debian-packages-runtime.txt | xargs apt-get install -y --no-install-recommends \
    && rm -rf /var/lib/apt/lists/* /tmp/debian-packages-runtime.txt && useradd --no-create-home --uid 10001 quire
COPY --from=build /src/build/release/quire /usr/local/bin/quire
COPY --from=build /src/build/models/SmolLM2-135M-Instruct.Q4_1.gguf /models/
USER quire
EXPOSE 50051 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["quire"]
CMD ["serve", "--host", "0.0.0.0", "--model", "/models/SmolLM2-135M-Instruct.Q4_1.gguf"]
