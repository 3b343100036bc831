"""Schedules work from Python, in a transaction of your own.

    DATABASE_URL=... MONALISA_VALKEY_URL=... python schedule_report.py 7
"""

import os
import sys

import psycopg
import redis
from psycopg.types.json import Jsonb
from redis.backoff import NoBackoff
from redis.retry import Retry


class AlreadyAskedFor(Exception):
    """This report was asked for in another format: an API answers with 409."""


def schedule_report(db, tenant_id, report_id, format):
    """The report and its work, in the caller's transaction: both or neither."""
    db.execute("select set_config('app.tenant_id', %s, true)", [str(tenant_id)])
    db.execute("insert into reports (id, format) values (%s, %s) on conflict (id) do nothing", [report_id, format])
    payload = {"report_id": report_id, "format": format}
    row = db.execute(
        "select work.dispatch('reports.export', %s, idempotency_key => %s)",
        [Jsonb(payload), f"report-{report_id}"],
    ).fetchone()
    return row[0]


def request_report(db, wake, tenant_id, report_id, format):
    """The use case: one transaction, then the wake."""
    try:
        with db.transaction():
            run_id = schedule_report(db, tenant_id, report_id, format)
    except psycopg.Error as error:
        if error.sqlstate == "ML008":  # IDEMPOTENCY_CONFLICT
            raise AlreadyAskedFor(error.sqlstate) from error
        raise
    wake()
    return run_id


class Wake:
    """Wakes the relay after a commit. It never fails: without it the work waits for the next sweep."""

    def __init__(self, url):
        # A try of a second, and no further ones: the commit stands anyway.
        limits = {"socket_connect_timeout": 1, "socket_timeout": 1, "retry": Retry(NoBackoff(), 0)}
        self.valkey = redis.Redis.from_url(url, **limits) if url else None

    def __call__(self):
        if self.valkey is None:
            return
        try:
            pipeline = self.valkey.pipeline(transaction=False)
            pipeline.lpush("monalisa:outbox:wake", 1)
            pipeline.ltrim("monalisa:outbox:wake", 0, 15)
            pipeline.execute()
        except redis.RedisError:
            pass


def main():
    report_id = int(sys.argv[1])
    wake = Wake(os.environ.get("MONALISA_VALKEY_URL"))
    # autocommit: only what stands in `with db.transaction()` is a transaction.
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as db:
        print("scheduled", request_report(db, wake, 1, report_id, "pdf"))
        # The same key and payload: the first run, and no second one.
        print("again", request_report(db, wake, 1, report_id, "pdf"))
        try:
            request_report(db, wake, 1, report_id, "csv")
        except AlreadyAskedFor as refused:
            print("refused", refused)
        # A rollback leaves nothing: no report, no run, no message.
        with db.transaction():
            print("rolled_back", schedule_report(db, 1, report_id + 1, "pdf"))
            raise psycopg.Rollback()


if __name__ == "__main__":
    main()
