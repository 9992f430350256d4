# One image for everything: /bin/sidecar, /bin/xds, /bin/keyward, and the two names under which users of
# envoyproxy/ratelimit start their containers, /bin/ratelimit and /bin/ratelimit_config_check.
# Nothing here needs BuildKit.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN mkdir -p /out/bin /out/root /out/certs /out/run \
 && CGO_ENABLED=0 go build -trimpath -buildvcs=false \
      -ldflags "-s -w -X main.version=$VERSION -X github.com/keyward/keyward/cmd/internal/boot.Version=$VERSION" \
      -o /out/bin/ ./cmd/sidecar ./cmd/xds ./cmd/keyward \
 && ln -s sidecar /out/bin/ratelimit \
 && ln -s keyward /out/bin/ratelimit_config_check \
 && for p in sidecar xds keyward; do ln -s /bin/$p /out/root/$p; done

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/bin/ /bin/
COPY --from=build /out/root/ /
# A new volume takes its owner from the folder it is mounted on.
COPY --from=build --chown=65532:65532 /out/certs/ /certs/
COPY --from=build --chown=65532:65532 /out/run/ /run/keyward/
USER 65532:65532
# RLS; RLS of other pods' Envoys; JSON and health; debug; gossip; peers; metrics; xDS
EXPOSE 8081 8082 8080 6070 7946/tcp 7946/udp 7947 9090 18000
# No entrypoint, as in the image this one replaces: `command: /bin/ratelimit` works in every manifest.
CMD ["/bin/sidecar"]
