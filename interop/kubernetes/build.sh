#!/usr/bin/env bash
# Compiles packages of this module into a directory: build.sh DIRECTORY PACKAGE...
set -euo pipefail
cd "$(dirname "$0")"
directory=$1
shift
release=v1.35.4
# Without a release the programs say v0.0.0, which charts refuse.
version=k8s.io/component-base/version
linked="-s -w -X $version.gitVersion=$release -X $version.gitMajor=1 -X $version.gitMinor=35"
go build -mod=readonly -trimpath "-ldflags=$linked" -o "$directory" "$@"
