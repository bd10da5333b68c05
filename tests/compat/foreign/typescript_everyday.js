// The TypeScript workflows of everyday kinds whose runs are recorded in `typescript/` (SDK 1.24), `typescript_1_10/` and
// `typescript_1_8/`, for comparison with their twins. Activities as in `typescript_programs.js`; `child2` is their child.
const w = require('@temporalio/workflow');
const { sleep, condition, proxyActivities, proxyLocalActivities, CancellationScope, isCancellation, defineSignal,
  defineUpdate, setHandler, patched, deprecatePatch, executeChild, startChild, ApplicationFailure,
  getExternalWorkflowHandle, ChildWorkflowCancellationType, ParentClosePolicy, workflowInfo, continueAsNew } = w;
const T = { startToCloseTimeout: '10s' };
const a = proxyActivities({ ...T, heartbeatTimeout: '5s' });
const once = proxyActivities({ ...T, retry: { maximumAttempts: 1 } });
const la = proxyLocalActivities({ ...T, retry: { initialInterval: '10ms', maximumAttempts: 5 } });
const go = defineSignal('go');
const put = defineSignal('put');
const set = defineUpdate ? defineUpdate('set') : null;

exports.raceCancelTimer = async function () {
  const scope = new CancellationScope();
  const timer = scope.run(() => sleep('1 hour')).catch((e) => { if (!isCancellation(e)) throw e; return 'cancelled'; });
  const won = await Promise.race([a.echo('quick'), timer]);
  scope.cancel();
  await timer;
  return await a.echo('won ' + won);
};
exports.saga = async function () {
  const undo = [];
  try {
    await a.echo('reserve'); undo.push(() => a.echo('unreserve'));
    await a.echo('charge'); undo.push(() => a.echo('refund'));
    await once.fails('ship');
    return 'shipped';
  } catch (e) {
    for (const step of undo.reverse()) await step();
    throw ApplicationFailure.nonRetryable('undone', 'Saga');
  }
};
exports.worklist = async function () {
  const queue = []; const out = []; let over = false;
  setHandler(put, (x) => { queue.push(x); });
  setHandler(go, () => { over = true; });
  while (!(over && queue.length === 0)) {
    await condition(() => over || queue.length > 0);
    while (queue.length) out.push(await a.echo(queue.shift()));
  }
  return out;
};
exports.lateHandlers = async function () {
  const got = [];
  await a.echo('before');
  setHandler(put, (x) => { got.push('put ' + x); });
  await a.echo('between');
  setHandler(go, () => { got.push('go'); });
  await condition(() => got.includes('go'));
  return got;
};
exports.updateAtEnd = async function () {
  let asked = false; let ended = false;
  setHandler(set, async () => { asked = true; await condition(() => ended); return 'answered'; });
  await condition(() => asked);
  ended = true;
};
exports.child2 = async function (what) {
  const seen = [];
  setHandler(put, (x) => { seen.push(x); });
  if (what === 'signals') { await condition(() => seen.length >= 2); return seen; }
  if (what === 'long') { try { await sleep('1 hour'); } catch (e) { await CancellationScope.nonCancellable(() => a.echo('child cleans')); throw e; } }
  if (what === 'fail') throw ApplicationFailure.nonRetryable('child failed', 'Kid');
  if (what === 'again') { if (!workflowInfo().continuedFromExecutionRunId) { await sleep(10); await continueAsNew('again'); } return 'second'; }
  return 'child ' + what;
};
exports.childSignals = async function () {
  const id = workflowInfo().workflowId;
  const h = await startChild('child2', { args: ['signals'], workflowId: id + '-c' });
  await Promise.all([h.signal('put', 'a'), a.echo('meanwhile')]);
  await h.signal('put', 'b');
  return await h.result();
};
exports.childCancels = async function () {
  const scope = new CancellationScope();
  const res = scope.run(() => executeChild('child2', { args: ['long'], workflowId: workflowInfo().workflowId + '-c' }));
  await sleep(150);
  scope.cancel();
  try { await res; return 'fine'; } catch (e) { if (!isCancellation(e)) throw e; return await a.echo('child is gone'); }
};
exports.childTryCancel = async function () {
  const scope = new CancellationScope();
  const res = scope.run(() => executeChild('child2', { args: ['long'], workflowId: workflowInfo().workflowId + '-c', cancellationType: ChildWorkflowCancellationType.TRY_CANCEL, parentClosePolicy: ParentClosePolicy.REQUEST_CANCEL }));
  await sleep(150);
  scope.cancel();
  try { await res; return 'fine'; } catch (e) { if (!isCancellation(e)) throw e; return await a.echo('child was told'); }
};
exports.parentCancelled = async function () {
  const id = workflowInfo().workflowId;
  try { await Promise.all([executeChild('child2', { args: ['long'], workflowId: id + '-1' }), a.beats('b'), sleep('1 hour')]); }
  finally { await CancellationScope.nonCancellable(() => a.echo('parent cleans')); }
};
exports.versions = async function () {
  const out = [];
  for (let i = 0; i < 3; i++) {
    if (patched('loop')) out.push(await a.echo('new ' + i)); else out.push(await a.echo('old ' + i));
  }
  deprecatePatch('gone');
  await Promise.all([(async () => { if (patched('side')) await sleep(10); })(), a.echo('other')]);
  if (patched('last')) await la.echo('l');
  return out;
};
exports.localChains = async function () {
  const chain = async (n) => { const x = await la.echo(n + '1'); const y = await la.slow(x + '2', 30); return await a.echo(y + '3'); };
  return await Promise.all([chain('a'), chain('b'), chain('c')]);
};
exports.sleepZero = async function () {
  await sleep(0);
  await a.echo('one');
  await sleep(0);
  await Promise.all([sleep(0), a.echo('two')]);
  return 'ok';
};
exports.timeoutNested = async function () {
  const out = [];
  await CancellationScope.withTimeout('1 hour', async () => {
    try { await CancellationScope.withTimeout(80, () => a.beats('inner')); }
    catch (e) { if (!isCancellation(e)) throw e; out.push('inner late'); }
    out.push(await a.echo('outer goes on'));
  });
  try { await CancellationScope.withTimeout(60, async () => { await CancellationScope.nonCancellable(() => a.slow('kept', 150)); await a.echo('never'); }); }
  catch (e) { if (!isCancellation(e)) throw e; out.push('late'); }
  return await a.echo(out);
};
exports.cancelTwice = async function () {
  const out = [];
  for (const n of [1, 2]) {
    const scope = new CancellationScope();
    const work = scope.run(async () => { try { await a.beats('b' + n); } finally { await CancellationScope.nonCancellable(() => a.echo('clean ' + n)); } });
    await sleep(80);
    scope.cancel();
    try { await work; } catch (e) { if (!isCancellation(e)) throw e; out.push(n); }
  }
  return out;
};
exports.sameTimers = async function () {
  const out = [];
  const leg = async (n) => { await sleep(50); out.push(n); await a.echo(n); await sleep(50); await a.echo(n + '!'); };
  await Promise.all([(async () => { await Promise.all([leg('a'), leg('b')]); })(), leg('c')]);
  return out.length;
};
exports.externals = async function (other) {
  const h = getExternalWorkflowHandle(other);
  await Promise.all([h.signal('put', 1), h.signal('put', 2), a.echo('x')]);
  const scope = new CancellationScope();
  try { await getExternalWorkflowHandle('no-such').cancel(); } catch (e) { await a.echo('no such'); }
  await h.cancel();
  return 'done';
};
