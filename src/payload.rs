//! What a payload type says of itself: which task or event it belongs to. APIs and handlers share it.

use serde::{Serialize, de::DeserializeOwned};

/// A command, "do this": its payload is this type, its handler exactly one. `task!` implements it.
pub trait Task: Serialize + DeserializeOwned + Send + 'static {
    /// Name of the task in the catalogue.
    const NAME: &'static str;
}

/// A fact, "this happened": its payload is this type, its subscribers zero or more.
///
/// ```
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct InvitationCreated { invitation_id: i64 }
///
/// impl monalisa::Event for InvitationCreated {
///     const TYPE: &'static str = "invitations.created";
/// }
/// ```
pub trait Event: Serialize + DeserializeOwned + Send + 'static {
    /// Type of the event.
    const TYPE: &'static str;
    /// Version of its payload.
    const VERSION: i32 = 1;
}
