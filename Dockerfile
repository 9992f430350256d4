# One image for everything: /bin/sidecar, /bin/xds, /bin/keyward, /bin/coordinator, and the two names under which users of
# envoyproxy/ratelimit start their containers, /bin/ratelimit and /bin/ratelimit_config_check.
# Nothing here needs BuildKit. The bases are fixed by digest, the compiler has the version in go.mod. scripts/release builds the image of
# releases, with the same programs, links, folders, user and ports: deploy/release compares the two.
FROM golang:1.26.8-bookworm@sha256:dc9ad6c05acc7a88e5b71bde60a5fe3bd4b9f0db209011711b464107438a8107 AS build
WORKDIR /src
COPY go.mod go.sum ./
COPY tools/licenses/go.mod tools/licenses/go.sum tools/licenses/
RUN go mod download && go mod download -modfile=tools/licenses/go.mod
COPY . .
ARG VERSION=dev
RUN mkdir -p /out/bin /out/root /out/certs /out/run /out/data \
 && CGO_ENABLED=0 go build -trimpath -buildvcs=false \
      -ldflags "-s -w -X main.version=$VERSION -X github.com/keyward/keyward/internal/app.Version=$VERSION" \
      -o /out/bin/ ./cmd/sidecar ./cmd/xds ./cmd/keyward ./cmd/coordinator \
 && ln -s sidecar /out/bin/ratelimit \
 && ln -s keyward /out/bin/ratelimit_config_check \
 && for p in sidecar xds keyward coordinator; do ln -s /bin/$p /out/root/$p; done \
 && scripts/licenses /out/licenses

FROM gcr.io/distroless/static-debian12:nonroot@sha256:afa5c872c891853ca7fcf1f12c3edb23f7eeef36189728842dd51042ff57f7ab
COPY --from=build /out/bin/ /bin/
COPY --from=build /out/root/ /
COPY --from=build /out/licenses/ /licenses/
COPY LICENSE NOTICE /licenses/
# A new volume takes its owner from the folder it is mounted on.
COPY --from=build --chown=65532:65532 /out/certs/ /certs/
COPY --from=build --chown=65532:65532 /out/run/ /run/keyward/
COPY --from=build --chown=65532:65532 /out/data/ /var/lib/keyward/
USER 65532:65532
# RLS; RLS of other pods' Envoys; JSON and health; debug; gossip; peers; coordinators; metrics; xDS
EXPOSE 8081 8082 8080 6070 7946/tcp 7946/udp 7947 7948 9090 18000
# No entrypoint, as in the image this one replaces: `command: /bin/ratelimit` works in every manifest.
CMD ["/bin/sidecar"]
