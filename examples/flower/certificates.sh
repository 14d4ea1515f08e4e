#!/usr/bin/env bash
# Keys and certificates for a SuperLink and its SuperNodes: certificates.sh FOLDER NODES [ADDRESS]
# ADDRESS is the one that the SuperLink is reached at; without it, it is on this machine.
# They are for trying things out. Of a real deployment the authority's key lies elsewhere, and each SuperNode makes its own.
set -euo pipefail
umask 077
folder=$1 nodes=$2 address=${3:-127.0.0.1}
mkdir -p "$folder"
cd "$folder"

openssl req -x509 -newkey rsa:2048 -nodes -sha256 -days 30 -subj "/CN=thinwire example authority" \
    -keyout ca.key -out ca.pem 2>/dev/null
openssl req -newkey rsa:2048 -nodes -sha256 -subj "/CN=localhost" -keyout server.key -out server.csr 2>/dev/null
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -sha256 -days 30 -out server.pem \
    -extfile <(printf 'subjectAltName=DNS:localhost,IP:%s\nbasicConstraints=CA:FALSE\n' "$address") 2>/dev/null

for ((node = 0; node < nodes; node++)); do
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "node-$node" -f "node-$node"
done
