//! The workers: the units of the modules below, and those that ship. A unit is one file; name it here with `mod`, it is found by itself.

mod reports;
mod sessions;

fn main() -> std::process::ExitCode {
    monalisa::Workers::new().main()
}
