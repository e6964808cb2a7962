#!/usr/bin/env bash
# Builds the image of the repository's Dockerfile without a container engine: image.sh REPOSITORY BINARY DIRECTORY TIME DESTINATION,
# such as docker-archive:FILE:NAME or oci:FOLDER:TAG. The directory keeps the storage. The base images are Debian's packages, and
# `cargo` in the one of the build stage copies the binary, which was built before. TIME, in seconds since 1970, is that of all files
# and layers. The exit code is 3 if Debian's packages cannot be had.
set -euo pipefail
repository=$1 binary=$2 directory=$3 time=$4 destination=$5
export BUILDAH_ISOLATION=chroot
buildah() { command buildah --root "$directory/storage" --runroot "$directory/run" --storage-driver overlay "$@"; }
# The base images are kept, so their time is not that of a release.
commit() { buildah commit --quiet --rm --timestamp 0 "$1" "$2" > /dev/null; }
digest() { buildah inspect --type image --format '{{.FromImageDigest}}' "$1"; }

mkdir -p "$directory"
debian=docker.io/library/debian:bookworm-slim rust=docker.io/library/rust:1.95-bookworm
if [ ! -f "$directory/base.tar" ]; then
    # The packages of bookworm-slim.
    SOURCE_DATE_EPOCH=0 mmdebstrap --quiet --variant=essential --include=ca-certificates bookworm "$directory/part.tar" || exit 3
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
buildah bud --quiet --pull-never --timestamp "$time" --build-arg "RUST_DIGEST=$(digest $rust)" --build-arg "DEBIAN_DIGEST=$(digest $debian)" \
    --tag localhost/consort:0.1.0 "$repository" > /dev/null
buildah push --quiet localhost/consort:0.1.0 "$destination" > /dev/null
# Images that these have replaced.
buildah rmi --prune > /dev/null 2>&1 || true
