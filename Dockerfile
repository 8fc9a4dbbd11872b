# The local stack in a container: the whole product, without an AWS account.
#   docker build -t umavez .
#   docker run --rm --network host -v umavez:/umavez/.umavez umavez
# The stack listens on loopback only, so the container shares the network of the host.
FROM rust:1.95-bookworm AS build
WORKDIR /umavez
COPY . .
RUN cargo build --locked --workspace --bins && mkdir -p /built && \
    find target/debug -maxdepth 1 -type f -perm -u+x -exec cp {} /built/ \;

FROM debian:bookworm-slim
RUN useradd --create-home --uid 1000 umavez
# The stack reads its template, parameters and first steps from the path that it was built from.
WORKDIR /umavez
COPY --from=build /umavez/template.yaml ./
COPY --from=build /umavez/infra ./infra
COPY --from=build /built /usr/local/lib/umavez
RUN mkdir .umavez && chown umavez .umavez
USER 1000
ENV UMAVEZ_BUILT=1
VOLUME /umavez/.umavez
ENTRYPOINT ["/usr/local/lib/umavez/umavez-local"]
