// What an application does with one server or with several: SERVERS VERSION HOW_MANY_SERVERS. Ends with 0 if all of it is
// right. With USER, PASSWORD, MECHANISM and the file of a trusted certificate or `-` as well it shows who it is.
'use strict';

const assert = require('node:assert/strict');
const { connector, until } = require('./connect');

const [servers, version, count, user, password, mechanism, trusted] = process.argv.slice(2);
const connect = connector({ servers, version, count, user, password, mechanism, trusted });
const suffix = `js-${version}-${mechanism ?? 'open'}`;
let checks = 0;

function check(found, expected, what) {
  checks += 1;
  assert.deepEqual(found, expected, what);
}

// Whether this version has what came with that one.
const speaks = (since) => version === 'auto' || Number(version) >= since;

// From 4.0 on it comes with its metadata.
const previous = (found) => found?.value ?? found;

async function maps(client) {
  check(await client.get('k'), undefined, 'get of nothing');
  check(await client.containsKey('k'), false, 'containsKey of nothing');
  check(await client.replace('k', 'v'), false, 'replace of nothing');
  await client.put('k', 'v');
  check(await client.get('k'), 'v', 'get');
  check(await client.containsKey('k'), true, 'containsKey');
  check(await client.putIfAbsent('k', 'other'), false, 'putIfAbsent of something');
  check(previous(await client.put('k', 'w', { previous: true })), 'v', 'put with what was there');
  check(previous(await client.remove('k', { previous: true })), 'w', 'remove with what was there');
  check(await client.remove('k'), false, 'remove of nothing');
  check(await client.putIfAbsent('k', 'new'), true, 'putIfAbsent of nothing');
  const first = await client.getWithMetadata('k');
  check([first.value, first.lifespan, first.maxIdle], ['new', -1, -1], 'getWithMetadata');
  check(await client.replaceWithVersion('k', 'newer', first.version), true, 'replaceWithVersion');
  check(await client.replaceWithVersion('k', 'newest', first.version), false, 'replaceWithVersion of an old one');
  check(await client.removeWithVersion('k', first.version), false, 'removeWithVersion of an old one');
  const second = await client.getWithMetadata('k');
  check(await client.removeWithVersion('k', second.version), true, 'removeWithVersion');
  await client.put('mortal', 'v', { lifespan: '1h', maxIdle: '30m' });
  const mortal = await client.getWithMetadata('mortal');
  check([mortal.lifespan, mortal.maxIdle], [3600, 1800], 'a lifetime');
  await client.put('brief', 'v', { lifespan: '100ms' });
  await until('what lives for a moment is gone', async () => (await client.get('brief')) === undefined);
  await client.clear();
  check(await client.size(), 0, 'size after clear');
}

async function bulk(client) {
  const pairs = Array.from({ length: 500 }, (_, n) => ({ key: `key-${n}`, value: `value-${n}` }));
  const byKey = (one, other) => (one.key < other.key ? -1 : 1);
  const sorted = [...pairs].sort(byKey);
  await client.putAll(pairs);
  check(await client.size(), 500, 'size');
  const some = await client.getAll(pairs.slice(0, 50).map((pair) => pair.key));
  check(some.map(({ key, value }) => ({ key, value })).sort(byKey), pairs.slice(0, 50).sort(byKey), 'getAll');
  if (speaks(2.3)) {
    const walk = await client.iterator(37);
    const found = [];
    for (let item = await walk.next(); !item.done; item = await walk.next()) {
      found.push({ key: item.key, value: item.value });
    }
    await walk.close();
    check(found.sort(byKey), sorted, 'iterator');
  }
  if (Number(count) === 1) {
    // They are of the server that is asked.
    check((await client.stats()).stores >= 500, true, 'stores in the statistics');
  }
  const large = 'x'.repeat(1_000_000);
  await client.put('large', large);
  check(await client.get('large'), large, 'a large value');
  await Promise.all(pairs.map(async ({ key, value }) => check(await client.get(key), value, 'many at once')));
  await client.clear();
}

async function listeners(client) {
  const told = [];
  const id = await client.addListener('create', (key) => told.push(`create ${key}`));
  await client.addListener('modify', (key) => told.push(`modify ${key}`), { listenerId: id });
  await client.addListener('remove', (key) => told.push(`remove ${key}`), { listenerId: id });
  await client.put('heard', '1');
  await client.put('heard', '2');
  await client.remove('heard');
  await until('three events', () => told.length === 3);
  check(told, ['create heard', 'modify heard', 'remove heard'], 'events');
  await client.removeListener(id);
  await client.put('heard', '3');
  check(told.length, 3, 'no event after the removal');
  // Before, it does not say what values are.
  if (speaks(2.9)) {
    const both = [];
    const converterFactory = { name: 'key-value-with-previous-converter-factory' };
    const other = await client.addListener('modify', (data) => both.push(data), { converterFactory });
    await client.put('heard', '4');
    await until('an event with both values', () => both.length === 1);
    check(both, ['KeyValueWithPrevious{key=heard, value=4, prev=3}'], 'an event with both values');
    await client.removeListener(other);
  }
}

async function near(client, cacheName) {
  const keeping = await connect({ cacheName, nearCache: { maxEntries: 10 } });
  await client.put('near', '1');
  check(await keeping.get('near'), '1', 'a near value');
  check(keeping.nearCacheSize(), 1, 'near values');
  await client.put('near', '2');
  await until('the new value is near', async () => (await keeping.get('near')) === '2');
  await keeping.disconnect();
}

async function counters(client) {
  const name = `counter-${suffix}`;
  check(await client.counterIsDefined(name), false, 'isDefined of nothing');
  check(await client.counterCreate(name, { type: 'strong', storage: 'volatile', initialValue: 5 }), true, 'create');
  check(await client.counterCreate(name, { type: 'strong', storage: 'volatile', initialValue: 5 }), false, 'create again');
  check(await client.counterIsDefined(name), true, 'isDefined');
  check(Number(await client.counterGet(name)), 5, 'get');
  check(Number(await client.counterAddAndGet(name, 3)), 8, 'addAndGet');
  check(Number(await client.counterCompareAndSwap(name, 8, 20)), 8, 'compareAndSwap');
  check(Number(await client.counterGet(name)), 20, 'get after compareAndSwap');
  check(await client.counterReset(name), true, 'reset');
  check(Number(await client.counterGet(name)), 5, 'get after reset');
  check((await client.counterGetConfiguration(name)).initialValue, 5, 'getConfiguration');
  check(await client.counterRemove(name), true, 'remove');
}

async function multimaps(client) {
  await client.multimapPut('many', 'a');
  await client.multimapPut('many', 'b');
  check((await client.multimapGet('many')).sort(), ['a', 'b'], 'multimapGet');
  check(await client.multimapSize(), 2, 'multimapSize');
  check(await client.multimapContainsEntry('many', 'b'), true, 'multimapContainsEntry');
  check(await client.multimapContainsKey('few'), false, 'multimapContainsKey of nothing');
  check(await client.multimapRemoveEntry('many', 'a'), true, 'multimapRemoveEntry');
  check(await client.multimapContainsValue('a'), false, 'multimapContainsValue of what was removed');
  check(await client.multimapRemoveKey('many'), true, 'multimapRemoveKey');
}

async function cluster(client) {
  const topology = client.getTopologyInfo();
  await until('all servers are known', async () => {
    await client.get('k');
    return topology.getMembers().length === Number(count);
  });
  const owners = new Set();
  for (let n = 0; n < 100; n += 1) {
    owners.add(topology.findOwners(`key-${n}`)[0].port);
  }
  check(owners.size, Number(count), 'primaries of a hundred keys');
}

async function main() {
  const admin = await connect({});
  const cacheName = `maps-${suffix}`;
  await admin.admin.getOrCreateCache(cacheName, JSON.stringify({ 'distributed-cache': { mode: 'SYNC' } }));
  const multimapName = `multimaps-${suffix}`;
  await admin.admin.getOrCreateCache(multimapName, JSON.stringify({ 'distributed-cache': { mode: 'SYNC' } }));
  const client = await connect({ cacheName });
  if (version !== 'auto') {
    check(String(client.getProtocolVersion()), version, 'the version that is spoken');
  }
  await maps(client);
  await bulk(client);
  // Before, it says which events it wants, which servers ask for since 2.6 only.
  if (speaks(2.6)) {
    await listeners(client);
    await near(client, cacheName);
  }
  const multimap = await connect({ cacheName: multimapName });
  if (speaks(4)) {
    await counters(client);
    await multimaps(multimap);
  }
  if (Number(count) > 1) {
    await cluster(client);
  }
  await Promise.all([admin, client, multimap].map((one) => one.disconnect()));
  console.log(`ok ${checks}`);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
