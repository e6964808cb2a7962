// How our programs connect, and how they wait.
'use strict';

const assert = require('node:assert/strict');
const infinispan = require('infinispan');

const PATIENCE_MS = 60_000;

// What connects to these servers with whatever else is to be set.
function connector({ servers, version, count, user, password, mechanism, trusted }) {
  const all = { version, topologyUpdates: Number(count) > 1 };
  if (user) {
    all.authentication = { enabled: true, saslMechanism: mechanism, userName: user, password };
  }
  if (trusted && trusted !== '-') {
    all.ssl = { enabled: true, secureProtocol: 'TLS_client_method', trustCerts: [trusted], sniHostName: 'localhost' };
  }
  const addresses = servers.split(';').map((address) => {
    const [host, port] = address.split(':');
    return { host, port: Number(port) };
  });
  return (more) => infinispan.client(addresses, { ...all, ...more });
}

async function until(what, isSo) {
  const end = Date.now() + PATIENCE_MS;
  while (!(await isSo())) {
    assert.ok(Date.now() < end, `never: ${what}`);
    await new Promise((done) => setTimeout(done, 10));
  }
}

module.exports = { connector, until };
