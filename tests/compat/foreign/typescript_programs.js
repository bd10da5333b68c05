// The TypeScript workflows whose runs are recorded in `typescript/` (Temporal's TypeScript SDK 1.24), for comparison
// with their twins. Activities: echo returns its argument, nothing returns nothing, gated waits until it is let go, fails
// fails for good, flaky fails twice, beats heartbeats until it is cancelled, slow takes so many milliseconds.
const w = require('@temporalio/workflow');
const { sleep, condition, proxyActivities, proxyLocalActivities, CancellationScope, isCancellation,
  defineSignal, defineUpdate, defineQuery, setHandler, patched, deprecatePatch, executeChild, startChild,
  continueAsNew, upsertSearchAttributes, upsertMemo, uuid4, ApplicationFailure, getExternalWorkflowHandle,
  ActivityCancellationType, ChildWorkflowCancellationType, ParentClosePolicy, allHandlersFinished, workflowInfo,
  ActivityFailure, ChildWorkflowFailure, TimeoutFailure } = w;
const T = { startToCloseTimeout: '10s' };
const a = proxyActivities({ ...T, heartbeatTimeout: '5s' });
const once = proxyActivities({ ...T, retry: { maximumAttempts: 1 } });
const quick = proxyActivities({ ...T, retry: { initialInterval: '10ms', maximumAttempts: 5 } });
const la = proxyLocalActivities({ ...T, retry: { initialInterval: '10ms', maximumAttempts: 5 } });
const waiting = proxyActivities({ ...T, heartbeatTimeout: '5s', cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED });
const abandoned = proxyActivities({ ...T, cancellationType: ActivityCancellationType.ABANDON });

exports.sequence = async function (name) {
  const one = await a.echo(name);
  await sleep(50);
  const two = await a.echo({ one, list: [1, 2.5, null, true] });
  await a.nothing();
  return two;
};
exports.parallel = async function (names) { return await Promise.all(names.map((n) => a.echo(n))); };
exports.chains = async function (names) {
  return await Promise.all(names.map(async (n) => { const x = await a.gated(n); return await a.echo(x + '!'); }));
};
exports.chainsAndTimers = async function (names) {
  return await Promise.all(names.map(async (n, i) => {
    const x = await a.gated(n); await sleep(10 * (i + 1)); const y = await a.echo(x); await a.echo(y + '?'); return y;
  }));
};
exports.race = async function () {
  const first = await Promise.race([a.gated('never').then(() => 'activity'), sleep(100).then(() => 'timer')]);
  return await a.echo(first);
};
exports.raceInScope = async function () {
  let won = '';
  await CancellationScope.cancellable(async () => {
    const timer = sleep('1 hour').then(() => 'timer');
    won = await Promise.race([a.echo('quick'), timer]);
    CancellationScope.current().cancel();
    try { await timer; } catch (e) { if (!isCancellation(e)) throw e; }
  });
  return await a.echo(won);
};
const go = defineSignal('go');
const put = defineSignal('put');
const set = defineUpdate('set');
const total = defineQuery('total');
exports.conditionMet = async function () {
  let ready = false;
  setHandler(go, () => { ready = true; });
  const ok = await condition(() => ready, '1 hour');
  return await a.echo(ok);
};
exports.conditionTimesOut = async function () {
  const ok = await condition(() => false, '100ms');
  return await a.echo(ok);
};
exports.conditionTrueAlready = async function () {
  const ok = await condition(() => true, '1 hour');
  await sleep(20);
  return ok;
};
exports.cancelActivity = async function () {
  let ready = false;
  setHandler(go, () => { ready = true; });
  const scope = new CancellationScope();
  const work = scope.run(() => a.beats('x'));
  await condition(() => ready);
  scope.cancel();
  try { await work; return 'not cancelled'; } catch (e) { if (!isCancellation(e)) throw e; }
  return await a.echo('cleaned');
};
exports.cancelAndWait = async function () {
  const scope = new CancellationScope();
  const work = scope.run(() => waiting.beats('x'));
  await sleep(100);
  scope.cancel();
  try { await work; return 'not cancelled'; } catch (e) { if (!isCancellation(e)) throw e; }
  return await a.echo('stopped');
};
exports.cancelAbandoned = async function () {
  const scope = new CancellationScope();
  const work = scope.run(() => abandoned.gated('left'));
  await sleep(50);
  scope.cancel();
  try { await work; return 'not cancelled'; } catch (e) { if (!isCancellation(e)) throw e; }
  return await a.echo('gone on');
};
exports.cancelledRun = async function () {
  try { await a.beats('x'); } finally { await CancellationScope.nonCancellable(() => a.echo('cleanup')); }
};
exports.cancelledSleep = async function () {
  try { await sleep('1 hour'); } catch (e) {
    await CancellationScope.nonCancellable(() => a.echo('bye')); throw e;
  }
};
exports.cancelSwallowed = async function () {
  try { await sleep('1 hour'); } catch (e) { if (!isCancellation(e)) throw e; }
  return await CancellationScope.nonCancellable(async () => { await sleep(10); return a.echo('went on'); });
};
exports.scopeTimeout = async function () {
  try { await CancellationScope.withTimeout(100, () => a.beats('x')); return 'done'; }
  catch (e) { if (!isCancellation(e)) throw e; }
  return await a.echo('late');
};
exports.inbox = async function (until) {
  const seen = [];
  setHandler(put, (x) => { seen.push(x); });
  await condition(() => seen.length >= until);
  return await a.echo(seen);
};
exports.signalWork = async function () {
  const done = [];
  setHandler(put, async (x) => { const y = await a.echo(x); await sleep(10); done.push(y); });
  await condition(() => done.length >= 3);
  await condition(allHandlersFinished);
  return done;
};
exports.updates = async function () {
  let sum = 0; let over = false;
  setHandler(set, (n) => { sum += n; return sum; }, { validator: (n) => { if (n < 0) throw new Error('negative'); } });
  setHandler(total, () => sum);
  setHandler(go, () => { over = true; });
  await condition(() => over);
  return sum;
};
exports.updatesWork = async function () {
  const log = []; let over = false;
  setHandler(set, async (n) => { const x = await a.echo(n); log.push(x); await sleep(20); return log.length; });
  setHandler(go, () => { over = true; });
  await condition(() => over && allHandlersFinished());
  return log;
};
exports.updateFails = async function () {
  let over = false;
  setHandler(set, async (n) => { await a.echo(n); throw ApplicationFailure.nonRetryable('no such luck', 'Luck'); });
  setHandler(go, () => { over = true; });
  await condition(() => over);
  return 'over';
};
exports.patches = async function () {
  const out = [];
  if (patched('first')) out.push(await a.echo('new')); else out.push(await a.echo('old'));
  await sleep(10);
  if (patched('second')) { out.push(await a.echo('b')); await sleep(10); }
  if (patched('first')) out.push('again');
  return out;
};
exports.deprecated = async function () {
  deprecatePatch('first');
  const x = await a.echo('new');
  await sleep(10);
  return x;
};
exports.locals = async function () {
  const one = await la.echo('a');
  const two = await la.flaky('b');
  await sleep(10);
  const three = await la.echo([one, two]);
  return three;
};
exports.localsTogether = async function () {
  const all = await Promise.all([la.echo(1), la.echo(2), a.echo(3)]);
  await sleep(10);
  return [...all, await la.echo(4)];
};
exports.localFails = async function () {
  try { await la.fails('x'); return 'fine'; } catch (e) { return await a.echo('it failed'); }
};
const patient = proxyLocalActivities({ ...T, localRetryThreshold: '100ms', retry: { initialInterval: '300ms', maximumAttempts: 5 } });
exports.localBacksOff = async function () { return await patient.flaky('slowly'); };
exports.kid = async function (what) {
  if (what === 'fail') throw ApplicationFailure.nonRetryable('kid failed', 'Kid');
  if (what === 'wait') { let r = ''; setHandler(put, (x) => { r = x; }); await condition(() => r !== ''); return r; }
  if (what === 'long') { await sleep('1 hour'); }
  return 'kid ' + what;
};
exports.children = async function () {
  const one = await executeChild('kid', { args: ['one'], workflowId: workflowInfo().workflowId + '-one' });
  const handle = await startChild('kid', { args: ['wait'], workflowId: workflowInfo().workflowId + '-two' });
  await handle.signal('put', 'hello');
  const two = await handle.result();
  return [one, two];
};
exports.childrenTogether = async function () {
  return await Promise.all(['x', 'y', 'z'].map((k) => executeChild('kid', { args: [k], workflowId: workflowInfo().workflowId + k })));
};
exports.childDefaultId = async function () {
  const handle = await startChild('kid', { args: ['wait'], parentClosePolicy: ParentClosePolicy.ABANDON });
  await handle.signal('put', 'there');
  const got = await handle.result();
  await startChild('kid', { args: ['long'], parentClosePolicy: ParentClosePolicy.TERMINATE });
  return got;
};
exports.childFails = async function () {
  try { await executeChild('kid', { args: ['fail'], workflowId: workflowInfo().workflowId + '-kid' }); return 'fine'; }
  catch (e) { if (!(e instanceof ChildWorkflowFailure)) throw e; return await a.echo(e.cause.message); }
};
exports.childCancelled = async function () {
  const scope = new CancellationScope();
  const handle = await scope.run(() => startChild('kid', { args: ['long'], workflowId: workflowInfo().workflowId + '-kid' }));
  await sleep(50);
  scope.cancel();
  try { await handle.result(); return 'fine'; } catch (e) { if (!isCancellation(e)) throw e; }
  return await a.echo('child gone');
};
exports.again = async function (n) {
  await a.echo(n);
  await sleep(10);
  if (n < 2) await continueAsNew(n + 1);
  return n;
};
exports.notes = async function () {
  upsertSearchAttributes({ CustomKeywordField: ['green'] });
  await sleep(10);
  upsertMemo({ colour: 'red', count: 3 });
  await a.echo('noted');
  return 'ok';
};
exports.chance = async function () {
  const id = uuid4();
  const n = Math.random();
  await a.echo(id);
  await a.echo(n);
  await sleep(10);
  return 'drawn';
};
exports.retried = async function () { return await quick.flaky('worn'); };
exports.exhausted = async function () {
  try { await once.fails('x'); } catch (e) { if (!(e instanceof ActivityFailure)) throw e; await a.echo(e.cause.message); throw e; }
};
const hasty = proxyActivities({ startToCloseTimeout: '200ms', retry: { maximumAttempts: 1 } });
const nobody = proxyActivities({ scheduleToStartTimeout: '200ms', startToCloseTimeout: '5s', taskQueue: 'nobody-listens', retry: { maximumAttempts: 1 } });
exports.timeouts = async function () {
  const seen = [];
  for (const call of [() => hasty.gated('slow'), () => nobody.echo('x')]) {
    try { await call(); seen.push('fine'); } catch (e) {
      if (!(e instanceof ActivityFailure && e.cause instanceof TimeoutFailure)) throw e; seen.push(e.cause.timeoutType);
    }
  }
  return await a.echo(seen.length);
};
exports.fails = async function () {
  await a.echo('before');
  throw ApplicationFailure.create({ message: 'as told', type: 'Told', nonRetryable: true, details: ['x'] });
};
exports.others = async function (other) {
  const handle = getExternalWorkflowHandle(other);
  await handle.signal('put', 'from afar');
  await sleep(10);
  try { await getExternalWorkflowHandle('nobody-' + other).signal('put', 'x'); } catch (e) { await a.echo('not there'); }
  await getExternalWorkflowHandle(other + '-long').cancel();
  return 'told';
};
exports.ticker = async function () {
  let stop = false; let ticks = 0;
  setHandler(go, () => { stop = true; });
  while (!stop && ticks < 4) { if (await condition(() => stop, 30)) break; ticks++; await a.echo('tick'); }
  return stop;
};
exports.mixed = async function () {
  const log = [];
  setHandler(put, async (x) => { log.push(await a.echo('signal ' + x)); });
  const side = (async () => { const g = await a.gated('g'); log.push(g); await a.echo('after g'); })();
  const timer = (async () => { await sleep(200); log.push('timer'); await a.echo('after timer'); })();
  await Promise.all([side, timer]);
  await condition(() => log.length >= 4);
  return log.length;
};
exports.allSettled = async function () {
  const all = await Promise.allSettled([once.fails('x'), a.echo('y'), once.fails('z')]);
  return await a.echo(all.map((r) => r.status));
};
exports.scopeMany = async function () {
  const scope = new CancellationScope();
  const work = ['p', 'q'].map((n) => scope.run(async () => { await a.beats(n); }).catch((e) => { if (!isCancellation(e)) throw e; return n; }));
  const timer = scope.run(() => sleep('1 hour')).catch((e) => { if (!isCancellation(e)) throw e; return 'timer'; });
  await sleep(50);
  scope.cancel();
  const all = await Promise.all([...work, timer]);
  return await a.echo(all);
};
exports.timersTogether = async function () {
  const order = [];
  await Promise.all([30, 10, 20].map(async (ms) => { await sleep(ms); order.push(ms); await a.echo(ms); }));
  return order.length;
};
exports.interpreted = async function (program) {
  let signals = 0;
  setHandler(put, async (x) => { await a.echo('signal ' + x); signals++; });
  setHandler(set, async (n) => { const y = await a.echo('update ' + n); await sleep(5); return y; });
  const run = async (block, path) => { let i = 0; for (const op of block) await step(op, path + '.' + i++); };
  const step = async ([kind, ...args], path) => {
    switch (kind) {
      case 'act': await a.echo(path); break;
      case 'slow': await a.slow(path, args[0]); break;
      case 'fail': try { await once.fails(path); } catch (e) { await a.echo(path + ' failed'); } break;
      case 'local': await la.echo(path); break;
      case 'sleep': await sleep(args[0]); break;
      case 'all': await Promise.all(args[0].map((b, i) => run(b, path + '/' + i))); break;
      case 'any': await Promise.race(args[0].map((b, i) => run(b, path + '/' + i))); await a.echo(path + ' one'); break;
      case 'until': { const wanted = signals + args[0]; const ok = await condition(() => signals >= wanted, args[1]); await a.echo([path, ok]); break; }
      case 'child': await executeChild('kid', { args: [path], workflowId: workflowInfo().workflowId + path }); break;
      case 'patch': await run(patched(args[0]) ? args[1] : args[2], path + '!'); break;
      case 'limit': { let late = false; try { await CancellationScope.withTimeout(args[0], () => run(args[1], path + '<')); } catch (e) { if (!isCancellation(e)) throw e; late = true; } await a.echo([path, late]); break; }
    }
  };
  await run(program, 'p');
  return 'end';
};
