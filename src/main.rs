//! The binary `workers`: the command line with the units that ship.

use std::process::ExitCode;

fn main() -> ExitCode {
    monalisa::Workers::new().main()
}
