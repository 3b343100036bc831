// Schedules work from Node, in a transaction of your own.
//
//   DATABASE_URL=... MONALISA_VALKEY_URL=... node schedule_report.js 7
import { Redis } from 'ioredis';
import pg from 'pg';

/** This report was asked for in another format: an API answers with 409. */
class AlreadyAskedFor extends Error {}

/** Commits what `work` does, or nothing of it. */
async function inTransaction(pool, work) {
  const db = await pool.connect();
  let broken;
  try {
    await db.query('begin');
    const result = await work(db);
    await db.query('commit');
    return result;
  } catch (error) {
    await db.query('rollback').catch((reason) => (broken = reason));
    throw error;
  } finally {
    db.release(broken);
  }
}

/** The report and its work, in the caller's transaction: both or neither. */
async function scheduleReport(db, tenantId, reportId, format) {
  await db.query("select set_config('app.tenant_id', $1, true)", [String(tenantId)]);
  await db.query('insert into reports (id, format) values ($1, $2) on conflict (id) do nothing', [reportId, format]);
  const payload = { report_id: reportId, format };
  const { rows } = await db.query("select work.dispatch('reports.export', $1, idempotency_key => $2) as run_id", [
    payload,
    `report-${reportId}`,
  ]);
  return rows[0].run_id;
}

/** The use case: one transaction, then the wake. */
async function requestReport(pool, wake, tenantId, reportId, format) {
  let runId;
  try {
    runId = await inTransaction(pool, (db) => scheduleReport(db, tenantId, reportId, format));
  } catch (error) {
    if (error.code === 'ML008') throw new AlreadyAskedFor(error.code, { cause: error }); // IDEMPOTENCY_CONFLICT
    throw error;
  }
  await wake();
  return runId;
}

/** Wakes the relay after a commit. It never fails: without it the work waits for the next sweep. */
function waker(url) {
  if (!url) return { wake: async () => {}, close: () => {} };
  // A try of a second, and no further ones: the commit stands anyway.
  const valkey = new Redis(url, { lazyConnect: true, connectTimeout: 1000, commandTimeout: 1000, maxRetriesPerRequest: 0 });
  valkey.on('error', () => {});
  return {
    wake: async () => {
      await valkey.pipeline().lpush('monalisa:outbox:wake', 1).ltrim('monalisa:outbox:wake', 0, 15).exec().catch(() => {});
    },
    close: () => valkey.disconnect(),
  };
}

const reportId = Number(process.argv[2]);
const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
const { wake, close } = waker(process.env.MONALISA_VALKEY_URL);
try {
  console.log('scheduled', await requestReport(pool, wake, 1, reportId, 'pdf'));
  // The same key and payload: the first run, and no second one.
  console.log('again', await requestReport(pool, wake, 1, reportId, 'pdf'));
  await requestReport(pool, wake, 1, reportId, 'csv').catch((error) => {
    if (!(error instanceof AlreadyAskedFor)) throw error;
    console.log('refused', error.message);
  });
  // A rollback leaves nothing: no report, no run, no message.
  await inTransaction(pool, async (db) => {
    console.log('rolled_back', await scheduleReport(db, 1, reportId + 1, 'pdf'));
    throw new Error('the use case fails after it has scheduled');
  }).catch(() => {});
} finally {
  close();
  await pool.end();
}
