//! The units that ship.

pub mod identity_login_notification_email;
pub mod maintenance_purge;
