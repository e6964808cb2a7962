#!/usr/bin/env bash
# Builds the image of the repository's Dockerfile without a container engine: image.sh REPOSITORY BINARY PAUSE DIRECTORY writes
# consort.tar and pause.tar into the directory. The base images are Debian's packages, and `cargo` in the one of the build stage
# copies the binary, which was built before.
set -euo pipefail
repository=$1 binary=$2 pause=$3 directory=$4
export BUILDAH_ISOLATION=chroot
buildah() { command buildah --root "$directory/storage" --runroot "$directory/run" --storage-driver overlay "$@"; }
commit() { buildah commit --quiet --rm "$1" "$2" > /dev/null; }
digest() { buildah inspect --type image --format '{{.FromImageDigest}}' "$1"; }

mkdir -p "$directory"
debian=docker.io/library/debian:bookworm-slim rust=docker.io/library/rust:1.95-bookworm
if [ ! -f "$directory/base.tar" ]; then
    # The packages of bookworm-slim.
    mmdebstrap --quiet --variant=essential --include=ca-certificates bookworm "$directory/part.tar"
    mv "$directory/part.tar" "$directory/base.tar"
fi
if ! buildah inspect --type image $debian > /dev/null 2>&1; then
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$directory/base.tar" / > /dev/null
    commit "$container" $debian
fi
stripped="$directory/consort"
strip -o "$stripped" "$binary"
cat > "$directory/cargo" <<'END'
#!/bin/sh
mkdir -p target/release && cp /consort target/release/consort
END
chmod 755 "$directory/cargo"
container=$(buildah from --pull-never $debian)
buildah copy --quiet "$container" "$stripped" /consort > /dev/null
buildah copy --quiet "$container" "$directory/cargo" /usr/local/bin/cargo > /dev/null
commit "$container" $rust
buildah bud --quiet --pull-never --build-arg "RUST_DIGEST=$(digest $rust)" --build-arg "DEBIAN_DIGEST=$(digest $debian)" \
    --tag localhost/consort:0.1.0 "$repository" > /dev/null
container=$(buildah from scratch)
buildah copy --quiet "$container" "$pause" /pause > /dev/null
buildah config --entrypoint '["/pause"]' "$container"
commit "$container" localhost/pause:1
for image in consort:0.1.0 pause:1; do
    archive="$directory/${image%%:*}.tar"
    rm -f "$archive"
    buildah push --quiet "localhost/$image" "docker-archive:$archive:localhost/$image"
done
