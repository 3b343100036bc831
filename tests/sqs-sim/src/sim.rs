//! The simulated service: the engine, and what this crate keeps beside it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustack_sqs_core::config::SqsConfig;
use rustack_sqs_core::handler::RustackSqsHandler;
use rustack_sqs_core::provider::RustackSqs;

use crate::calls::Calls;
use crate::error::ApiError;
use crate::fault::Faults;
use crate::forward;
use crate::moves::MoveTasks;
use crate::store::Store;

/// The account in every queue URL and ARN.
pub(crate) const ACCOUNT: &str = "000000000000";
/// The region in every ARN.
pub(crate) const REGION: &str = "us-east-1";

/// What `ChangeMessageVisibility` answers for a handle whose visibility timeout is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpiredHandle {
    /// Success, and nothing changes: what AWS does.
    #[default]
    Accept,
    /// `MessageNotInflight`: what the API's reference promises.
    Refuse,
}

/// What happens to messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// They are kept and delivered.
    #[default]
    Keep,
    /// They are accepted and forgotten, each call after this latency: for benchmarks of a sender.
    Null(Duration),
    /// Another SQS on this machine keeps them, in an account of this server's own; its rules count, not ours.
    Forward(SocketAddr),
}

/// How a server behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// See [`ExpiredHandle`].
    pub expired_handle: ExpiredHandle,
    /// See [`Mode`].
    pub mode: Mode,
}

/// Everything one server owns.
pub(crate) struct Sim {
    pub(crate) options: Options,
    pub(crate) engine: Arc<RustackSqs>,
    pub(crate) engine_api: RustackSqsHandler,
    pub(crate) store: Mutex<Store>,
    pub(crate) faults: Mutex<Faults>,
    pub(crate) calls: Mutex<Calls>,
    pub(crate) moves: MoveTasks,
    /// Our account at the engine that calls are forwarded to.
    pub(crate) account: String,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Sim").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Sim {
    /// A service without queues, whose queue URLs name `address`.
    pub(crate) fn new(address: SocketAddr, options: Options) -> Self {
        let engine = Arc::new(RustackSqs::new(SqsConfig {
            skip_signature_validation: true,
            default_region: REGION.to_owned(),
            account_id: ACCOUNT.to_owned(),
            host: address.ip().to_string(),
            port: address.port(),
        }));
        Self {
            options,
            engine_api: RustackSqsHandler::new(Arc::clone(&engine)),
            engine,
            store: Mutex::new(Store::new()),
            faults: Mutex::default(),
            calls: Mutex::default(),
            moves: MoveTasks::default(),
            account: forward::account(),
        }
    }
}

/// The queue's name, the last part of its URL, whatever the host: a production URL works here too.
pub(crate) fn queue_name(url: &str) -> Result<&str, ApiError> {
    match url.rsplit_once('/') {
        Some((_, name)) if !name.is_empty() => Ok(name),
        _ => Err(ApiError::plain("InvalidAddress", format!("The address {url} is not valid for this endpoint."))),
    }
}

/// The queue's URL as the engine reads it.
pub(crate) fn path(name: &str) -> String {
    format!("/{ACCOUNT}/{name}")
}

/// The queue's name in an ARN of this account and region.
pub(crate) fn name_of_arn(arn: &str) -> Option<&str> {
    arn.strip_prefix(&format!("arn:aws:sqs:{REGION}:{ACCOUNT}:"))
}
