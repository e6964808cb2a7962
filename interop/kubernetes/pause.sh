#!/usr/bin/env bash
# Builds the image of the program that holds a pod's namespaces: pause.sh PROGRAM DIRECTORY writes pause.tar into the directory, and
# keeps its storage there.
set -euo pipefail
program=$1 directory=$2
export BUILDAH_ISOLATION=chroot
buildah() { command buildah --root "$directory/storage" --runroot "$directory/run" --storage-driver overlay "$@"; }
container=$(buildah from scratch)
buildah copy --quiet "$container" "$program" /pause > /dev/null
buildah config --entrypoint '["/pause"]' "$container"
buildah commit --quiet --rm "$container" localhost/pause:1 > /dev/null
rm -f "$directory/pause.tar"
buildah push --quiet localhost/pause:1 "docker-archive:$directory/pause.tar:localhost/pause:1" > /dev/null
