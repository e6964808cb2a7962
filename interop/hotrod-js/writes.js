// Writes that are acknowledged while servers come and go: SERVERS VERSION. Until something can be read, it writes growing
// numbers to keys and reads each back, and says again and again how many servers the client knows. In the end every key has
// the number that was acknowledged last, or one that was tried later.
//
// The client has no deadlines, and does nothing when a server closes its connection: what that server has read and not
// answered goes to another one only if the client writes to it once more before it hears that it is gone.
'use strict';

const assert = require('node:assert/strict');
const { connector } = require('./connect');

const [servers, version] = process.argv.slice(2);
const connect = connector({ servers, version, count: 3 });
const WRITERS = 8;
const KEYS = 25;
// Which may be lost with a server, in a row.
const FAILURES_MAX = 1_000;
// Longer than our servers take for any request.
const ANSWERED_WITHIN_MS = 30_000;
let goesOn = true;
let checks = 0;
let acknowledgedInAll = 0;
let failedInAll = 0;
let forgottenInAll = 0;

class Forgotten extends Error {}

// What is answered. Only with its server may a request be gone.
async function answer(client, key, ask) {
  const topology = client.getTopologyInfo();
  const [asked] = topology.findOwners(key);
  let late;
  const forgotten = new Promise((_, fail) => {
    late = setTimeout(() => fail(new Forgotten(`no answer about ${key}`)), ANSWERED_WITHIN_MS);
  });
  try {
    return await Promise.race([ask(), forgotten]);
  } catch (error) {
    const isThere = topology.getMembers().some(({ host, port }) => host === asked.host && port === asked.port);
    assert.ok(!(error instanceof Forgotten && isThere), `${error.message} from ${asked.port}, which is there`);
    throw error;
  } finally {
    clearTimeout(late);
  }
}

function right(key, found, acknowledged, tried) {
  checks += 1;
  const value = Number(found ?? 0);
  assert.ok(
    value >= acknowledged && value <= tried,
    `${key} is ${found}, ${acknowledged} was acknowledged, ${tried} tried`,
  );
}

async function write(client, writer) {
  const acknowledged = Array(KEYS).fill(0);
  const tried = Array(KEYS).fill(0);
  const forgotten = new Set();
  const key = (at) => `writer-${writer}-${at}`;
  let failures = 0;
  for (let at = 0; goesOn; at = (at + 1) % KEYS) {
    // What may be written later than what follows it.
    if (forgotten.has(at)) continue;
    let found;
    try {
      tried[at] += 1;
      await answer(client, key(at), () => client.put(key(at), String(tried[at])));
      acknowledged[at] = tried[at];
      acknowledgedInAll += 1;
      failures = 0;
      found = await answer(client, key(at), () => client.get(key(at)));
    } catch (error) {
      if (error instanceof assert.AssertionError) throw error;
      if (error instanceof Forgotten) {
        forgottenInAll += 1;
        forgotten.add(at);
      }
      // It may be there or not.
      failedInAll += 1;
      failures += 1;
      assert.ok(failures < FAILURES_MAX, `something succeeds: ${error}`);
      continue;
    }
    right(key(at), found, acknowledged[at], tried[at]);
  }
  for (let at = 0; at < KEYS; at += 1) {
    const found = await answer(client, key(at), () => client.get(key(at)));
    right(key(at), found, acknowledged[at], tried[at]);
  }
}

async function main() {
  const admin = await connect({});
  const cacheName = 'writes-js';
  await admin.admin.getOrCreateCache(cacheName, JSON.stringify({ 'distributed-cache': { mode: 'SYNC' } }));
  await admin.disconnect();
  const client = await connect({ cacheName });
  process.stdin.once('data', () => {
    goesOn = false;
  });
  const topology = client.getTopologyInfo();
  const saying = setInterval(() => console.log(`written ${topology.getMembers().length}`), 50);
  await Promise.all(Array.from({ length: WRITERS }, (_, writer) => write(client, writer)));
  clearInterval(saying);
  process.stdin.destroy();
  await client.disconnect();
  console.log(`${acknowledgedInAll} writes acknowledged, ${failedInAll} failed, ${forgottenInAll} of them never answered`);
  console.log(`ok ${checks}`);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
