# The image of charts/consort: docker build -t consort:0.1.0 .
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package consort-cli

# The same release of the system's libraries. With a shell, so that files can be read again: kill -HUP 1
FROM debian:bookworm-slim
COPY --from=build /src/target/release/consort /usr/local/bin/consort
COPY LICENSE /usr/share/doc/consort/LICENSE
# Nobody in particular, by number, so that runAsNonRoot can be held against it.
USER 65532:65532
EXPOSE 11222 7800 7900
ENTRYPOINT ["/usr/local/bin/consort"]
CMD ["server", "--host=::"]
