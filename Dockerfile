# One image with all programs; what it runs is the command: /api, /relay, /consumer, /worker, /fakepsp, /migrate
# or /oncepay.
# It builds with BuildKit and without.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
RUN mkdir /out /books && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X github.com/oncepay/oncepay/internal/telemetry.release=${VERSION}" -o /out/ ./cmd/api ./cmd/relay ./cmd/consumer ./cmd/worker ./cmd/fakepsp ./cmd/migrate ./cmd/oncepay

# Nothing but the programs and whom to trust: no shell, no package manager, nothing to patch but Go.
FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/ /
# Where fakepsp keeps its books: a volume takes over the owner.
COPY --from=build --chown=65532:65532 /books/ /books/
# A number, so that Kubernetes' runAsNonRoot can see that it is not root.
USER 65532:65532
EXPOSE 8080
CMD ["/api"]
