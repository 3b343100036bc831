"""The use case without workers: what it scheduled is looked up in its own transaction, which is then rolled back.

    DATABASE_URL=... API_ROLE=my_api python -m unittest

The database is one for tests, made by `workers migrate`; DATABASE_URL is its owner, who may read the runs. The use case itself
acts as the role of the API.
"""

import json
import os
import unittest
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from schedule_report import AlreadyAskedFor, request_report, schedule_report

TASKS = Path(__file__).parent.parent / "tasks_for_tests.json"


class ScheduleReport(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.db = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
        cls.addClassCleanup(cls.db.close)
        cls.db.execute("select work.load_catalogue(%s, 'workers')", [Jsonb(json.loads(TASKS.read_text()))])

    @contextmanager
    def use_case(self):
        """A transaction of the API's role that is rolled back at its end."""
        with self.db.transaction(force_rollback=True):
            self.db.execute(sql.SQL("set local role {}").format(sql.Identifier(os.environ["API_ROLE"])))
            yield
            self.db.execute("reset role")

    def scheduled(self, unit, payload):
        """How many runs of this unit with this payload the transaction has scheduled."""
        self.db.execute("reset role")
        query = "select count(*) from work.task_runs where unit = %s and payload = %s and created_at >= now()"
        return self.db.execute(query, [unit, Jsonb(payload)]).fetchone()[0]

    def test_a_report_schedules_exactly_one_run(self):
        with self.use_case():
            schedule_report(self.db, 1, 7, "pdf")
            schedule_report(self.db, 1, 7, "pdf")
            self.assertEqual(self.scheduled("reports.export", {"report_id": 7, "format": "pdf"}), 1)
            self.assertEqual(self.scheduled("reports.export", {"report_id": 8, "format": "pdf"}), 0)

    def test_another_format_is_refused_and_leaves_the_first(self):
        with self.use_case():
            woken = []
            request_report(self.db, lambda: woken.append(True), 1, 7, "pdf")
            with self.assertRaises(AlreadyAskedFor):
                request_report(self.db, lambda: woken.append(True), 1, 7, "csv")
            self.assertEqual(woken, [True])
            self.assertEqual(self.scheduled("reports.export", {"report_id": 7, "format": "pdf"}), 1)

    def test_a_task_that_the_catalogue_does_not_hold_is_refused(self):
        with self.use_case(), self.assertRaises(psycopg.Error) as refused:
            with self.db.transaction():
                self.db.execute("select work.dispatch('reports.expor')")
        self.assertEqual(refused.exception.sqlstate, "ML001")
        self.assertIn("reports.export", refused.exception.diag.message_hint)


if __name__ == "__main__":
    unittest.main()
