// Writes that are acknowledged while servers come and go: SERVERS VERSION. Until something can be read, it writes growing
// numbers to keys and reads each back, and says again and again how many servers the client knows. In the end every key has
// the number that was acknowledged last, or one that was tried later.
'use strict';

const assert = require('node:assert/strict');
const { connector } = require('./connect');

const [servers, version] = process.argv.slice(2);
const connect = connector({ servers, version, count: 3 });
const WRITERS = 8;
const KEYS = 25;
// Which may be lost with a server, in a row.
const FAILURES_MAX = 1_000;
let goesOn = true;
let checks = 0;
let acknowledgedInAll = 0;
let failedInAll = 0;

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
  const key = (at) => `writer-${writer}-${at}`;
  let failures = 0;
  for (let at = 0; goesOn; at = (at + 1) % KEYS) {
    let found;
    try {
      tried[at] += 1;
      await client.put(key(at), String(tried[at]));
      acknowledged[at] = tried[at];
      acknowledgedInAll += 1;
      failures = 0;
      found = await client.get(key(at));
    } catch (error) {
      // It may be there or not.
      failedInAll += 1;
      failures += 1;
      assert.ok(failures < FAILURES_MAX, `something succeeds: ${error}`);
      continue;
    }
    right(key(at), found, acknowledged[at], tried[at]);
  }
  for (let at = 0; at < KEYS; at += 1) {
    right(key(at), await client.get(key(at)), acknowledged[at], tried[at]);
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
  console.log(`${acknowledgedInAll} writes acknowledged, ${failedInAll} failed`);
  console.log(`ok ${checks}`);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
