//! The catalogue of SQL: every statement is a file under `sql/`, loaded as it stands.
//!
//! The path is the name everywhere: `sql/outbox/claim.sql` is `outbox/claim` in logs, errors and `pg_stat_statements` (its first
//! line), and [`outbox::CLAIM`] here. What a statement takes, returns, locks and costs stands in its header.

/// One SQL file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statement {
    /// Path below `sql/`, without the ending.
    pub name: &'static str,
    /// The file as it stands.
    pub text: &'static str,
}

impl Statement {
    /// The sentence of its first line.
    fn sentence(&self) -> &'static str {
        self.text.lines().next().and_then(|line| line.split_once(": ")).map_or("", |(_, sentence)| sentence)
    }

    /// For a file that makes a function, a view or an index: the command that gives this its sentence as a comment.
    pub fn comment(&self) -> Option<String> {
        let (folder, name) = self.name.split_once('/')?;
        let kind = match folder {
            "functions" => "function",
            "views" => "view",
            "indexes" => "index",
            _ => return None,
        };
        Some(format!("comment on {kind} work.{name} is '{}'", self.sentence().replace('\'', "''")))
    }
}

macro_rules! file {
    ($path:literal) => {
        Statement { name: $path, text: include_str!(concat!("../sql/", $path, ".sql")) }
    };
}

macro_rules! statements {
    ($($module:ident { $($constant:ident = $path:literal),* $(,)? })*) => {
        $(
            #[doc = concat!("Statements under `sql/", stringify!($module), "/`.")]
            pub mod $module {
                use super::Statement;
                $(
                    #[doc = concat!("```sql\n", include_str!(concat!("../sql/", $path, ".sql")), "\n```")]
                    pub const $constant: Statement = file!($path);
                )*
            }
        )*
        /// Every statement, in the order of the path the data travels.
        pub const ALL: &[Statement] = &[$($($module::$constant,)*)*];
    };
}

statements! {
    enqueue {
        DISPATCH = "enqueue/dispatch",
        DISPATCH_MANY = "enqueue/dispatch_many",
        PUBLISH = "enqueue/publish",
    }
    outbox {
        DUE = "outbox/due",
        CLAIM = "outbox/claim",
        MARK_SENT = "outbox/mark_sent",
        MARK_FAILED = "outbox/mark_failed",
        PURGE = "outbox/purge",
    }
    platform_outbox {
        DUE = "platform_outbox/due",
        CLAIM = "platform_outbox/claim",
        MARK_SENT = "platform_outbox/mark_sent",
        MARK_FAILED = "platform_outbox/mark_failed",
        PURGE = "platform_outbox/purge",
    }
    runs {
        JUDGE = "runs/judge",
        START = "runs/start",
        EXTEND = "runs/extend",
        OPEN_EFFECT = "runs/open_effect",
        PROGRESS = "runs/progress",
        SUCCEED = "runs/succeed",
        SUCCEED_ALONE = "runs/succeed_alone",
        FAIL = "runs/fail",
        GIVE_BACK = "runs/give_back",
        DEFER = "runs/defer",
        CONDEMN = "runs/condemn",
        REOPEN = "runs/reopen",
        POSTPONE = "runs/postpone",
        LOCK_UNFINISHED = "runs/lock_unfinished",
        REISSUE = "runs/reissue",
        STRANDED = "runs/stranded",
        REPAIR = "runs/repair",
    }
    queues {
        SERVE = "queues/serve",
    }
    schedules {
        KNOWN = "schedules/known",
        DECIDE = "schedules/decide",
        NOTE = "schedules/note",
    }
    idempotency {
        PURGE = "idempotency/purge",
    }
    catalogue {
        LOAD = "catalogue/load",
        MATCHES = "catalogue/matches",
        UNFINISHED = "catalogue/unfinished",
        STRANGERS = "catalogue/strangers",
    }
    ops {
        SCHEMA_VERSION = "ops/schema_version",
        BLOCKERS = "ops/blockers",
        INDEX_STATE = "ops/index_state",
        VIEW_STATE = "ops/view_state",
        MAY_WORK = "ops/may_work",
        CONNECTIONS = "ops/connections",
        OUTBOX_HEALTH = "ops/outbox_health",
        QUEUE_HEALTH = "ops/queue_health",
        CLOCK = "ops/clock",
        SCHEMA_OWNER = "ops/schema_owner",
        REDRIVE = "ops/redrive",
        RENEW = "ops/renew",
        AUDIT = "ops/audit",
    }
    testing {
        SHAPE = "testing/shape",
        OUTBOX_END = "testing/outbox_end",
        SCHEDULED = "testing/scheduled",
        DUE = "testing/due",
        FORWARD = "testing/forward",
        ENDED = "testing/ended",
    }
}

/// The roles, made before anything else.
pub const ROLES: Statement = file!("ops/roles");

/// What follows each function: no second one of its name stays.
pub const ONE_SIGNATURE: Statement = file!("ops/one_signature");

/// What a DBA runs by hand, with psql.
pub const SCRIPTS: &[Statement] = &[file!("ops/archive_runs")];

/// An index that came after the first schema. It is made beside the work that goes on, so in no transaction.
#[derive(Debug, Clone, Copy)]
pub struct Index {
    /// Its name in schema `work`.
    pub name: &'static str,
    /// The file that makes it.
    pub statement: Statement,
    /// The one that it makes superfluous.
    pub replaces: Option<&'static str>,
}

/// What `workers migrate` makes after everything else, where it is not there.
pub const INDEXES: &[Index] = &[
    Index {
        name: "task_runs_unfinished_due_idx",
        statement: file!("indexes/task_runs_unfinished_due_idx"),
        replaces: Some("task_runs_unfinished_idx"),
    },
    Index { name: "task_runs_failed_idx", statement: file!("indexes/task_runs_failed_idx"), replaces: None },
];

/// What `workers migrate` applies anew after the migrations: functions, views, guards, then grants.
pub const REAPPLIED: &[Statement] = &[
    file!("functions/uuid_v7"),
    file!("functions/transitions"),
    file!("functions/refuse_transition"),
    file!("functions/refuse_change"),
    file!("functions/setting_tenant"),
    file!("functions/tenant_for"),
    file!("functions/due_at"),
    file!("functions/check_writable"),
    file!("functions/check_payload"),
    file!("functions/check_payloads"),
    file!("functions/check_retired"),
    file!("functions/checked_traceparent"),
    file!("functions/nearest_units"),
    file!("functions/refuse_unit"),
    file!("functions/envelope"),
    file!("functions/claim_key"),
    file!("functions/enqueue"),
    file!("functions/dispatch"),
    file!("functions/dispatch_many"),
    file!("functions/publish"),
    file!("functions/run"),
    file!("functions/load_catalogue"),
    file!("functions/catalogue_state"),
    file!("functions/reissue"),
    file!("functions/decide_occurrence"),
    file!("functions/fire"),
    file!("functions/succeed"),
    file!("functions/reopen"),
    file!("functions/check_reason"),
    file!("functions/refuse_run"),
    file!("functions/cancel"),
    file!("functions/retry"),
    file!("functions/redrive"),
    file!("functions/renew"),
    file!("functions/audit"),
    file!("functions/queue_status"),
    file!("functions/outbox_status"),
    file!("functions/unit_status"),
    file!("functions/failures"),
    file!("functions/runs"),
    file!("functions/trail"),
    file!("views/queue_status"),
    file!("views/outbox_status"),
    file!("views/unit_status"),
    file!("views/failures"),
    file!("views/runs"),
    file!("views/trail"),
    file!("views/operator_actions"),
    file!("views/table_health"),
    file!("views/schedule_history"),
    file!("guards/task_runs_transition"),
    file!("guards/run_events_append_only"),
    file!("guards/row_level_security"),
    file!("guards/schema_history_comments"),
    file!("guards/index_comments"),
    file!("ops/grants"),
];
