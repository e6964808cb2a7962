# The image of charts/consort. Its base images are named by digest: a tag can be another image tomorrow. There is no default, as
# digests change with each fix of the base, and without one the build ends at once with an invalid reference. Take the newest
# ones and keep them where the image is built:
#   docker buildx imagetools inspect rust:1.95-bookworm
#   docker buildx imagetools inspect debian:bookworm-slim
#   docker build -t consort:0.1.0 --build-arg RUST_DIGEST=sha256:… --build-arg DEBIAN_DIGEST=sha256:… .
ARG RUST_DIGEST
ARG DEBIAN_DIGEST
FROM rust:1.95-bookworm@${RUST_DIGEST} AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package consort-cli --config profile.release.strip=true

# The same release of the system's libraries. With a shell, so that files can be read again: kill -HUP 1
FROM debian:bookworm-slim@${DEBIAN_DIGEST}
COPY --from=build /src/target/release/consort /usr/local/bin/consort
COPY LICENSE /usr/share/doc/consort/LICENSE
# The names of JGroups' scripts: perf.sh -nohup, probe.sh -addr localhost.
RUN ln -s consort /usr/local/bin/perf.sh && ln -s consort /usr/local/bin/probe.sh
# An unprivileged user, by number, so that Kubernetes can check runAsNonRoot.
USER 65532:65532
EXPOSE 11222 7800 7900
ENTRYPOINT ["/usr/local/bin/consort"]
# It listens for other hosts, so it does not start without --users or --no-auth: docker run consort server --host=:: --no-auth
CMD ["server", "--host=::"]
