//! A workers program of your own. It runs the units that ship with monalisa, and those of its own modules.
//!
//! To make yours: copy this folder, put a file beside `sessions.rs` for each topic and name it here with `mod`. There is no list of
//! units to keep: whatever is linked in is found. Then
//!
//! ```text
//! example-workers migrate          brings the schema up to date and tells the database which units there are
//! example-workers queues create    makes the SQS queues
//! example-workers                  runs the workers until SIGTERM; with MONALISA_RELAY=true the relay too
//! ```

mod sessions;

fn main() -> std::process::ExitCode {
    monalisa::Workers::new().main()
}
